package servers

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Fault is what a proxy does to one request.
type Fault uint8

// The faults. Refused ones are not passed on.
const (
	Pass       Fault = iota
	Refuse429        // too many requests
	Refuse503        // service unavailable
	Refuse500        // internal error
	Refuse403        // forbidden
	Drop             // the connection ends before anything was passed on
	LoseAnswer       // it is passed on, and the connection ends instead of the answer
	CutAnswer        // the answer's body ends half way
	Hang             // no answer until the client goes away
	faults
)

var faultNames = [...]string{"pass", "429", "503", "500", "403", "drop", "lose answer", "cut answer", "hang"}

// String returns the fault's name.
func (f Fault) String() string { return faultNames[f] }

// Faults returns all of them but Pass.
func Faults() []Fault {
	var all []Fault
	for f := Pass + 1; f < faults; f++ {
		all = append(all, f)
	}
	return all
}

// Proxy is between a client and a server, and does something to one of the requests. It is safe for concurrent use.
type Proxy struct {
	URL   string
	front *httptest.Server

	mu     sync.Mutex
	fault  Fault         // guarded by mu
	in     int           // guarded by mu; requests until it happens
	played chan struct{} // guarded by mu; closed when it happens
}

// NewProxy starts a proxy before the server at a URL, until the test's end.
func NewProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	return newProxy(t, server, false)
}

// NewTLSProxy is NewProxy with TLS before a server without. The file holds the authority that signed its certificate.
func NewTLSProxy(t testing.TB, server string) (p *Proxy, authority string) {
	t.Helper()
	p = newProxy(t, server, true)
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.front.Certificate().Raw})
	authority = filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(authority, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return p, authority
}

func newProxy(t testing.TB, server string, secure bool) *Proxy {
	t.Helper()
	target, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{played: make(chan struct{})}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
			r.Out.Host = r.In.Host // what was signed
		},
		Transport:      &http.Transport{DisableCompression: true, DisableKeepAlives: true},
		ModifyResponse: cutAnswer,
		ErrorLog:       log.New(io.Discard, "", 0), // answers that are cut on purpose
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.front = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.serve(w, r, forward)
	}))
	p.front.Config.ErrorLog = log.New(io.Discard, "", 0) // connections that fail on purpose
	if secure {
		p.front.StartTLS()
	} else {
		p.front.Start()
	}
	t.Cleanup(p.front.Close)
	p.URL = p.front.URL + target.Path
	return p
}

// Play makes the nth request from now on (from 1) meet a fault. The channel is closed when it does.
func (p *Proxy) Play(f Fault, nth int) (played <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.in, p.played = f, nth, make(chan struct{})
	return p.played
}

// Played reports whether the fault has happened.
func (p *Proxy) Played() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.played:
		return true
	default:
		return false
	}
}

func (p *Proxy) next() Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.in--; p.in != 0 {
		return Pass
	}
	close(p.played)
	return p.fault
}

// mark tells the answer's way back that it is to be cut.
const mark = "X-Test-Cut"

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	switch f := p.next(); f {
	case Refuse429, Refuse503, Refuse500, Refuse403:
		_, _ = io.Copy(io.Discard, r.Body) // as a server does that reads before it decides
		w.WriteHeader(map[Fault]int{Refuse429: 429, Refuse503: 503, Refuse500: 500, Refuse403: 403}[f])
	case Drop:
		panic(http.ErrAbortHandler)
	case LoseAnswer:
		forward.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case Hang:
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case CutAnswer:
		r.Header.Set(mark, "1")
		forward.ServeHTTP(w, r)
	default:
		forward.ServeHTTP(w, r)
	}
}

// cutAnswer leaves the length that was announced and half of the bytes.
func cutAnswer(res *http.Response) error {
	if res.Request.Header.Get(mark) == "" || res.ContentLength <= 0 {
		return nil
	}
	half := struct {
		io.Reader
		io.Closer
	}{io.LimitReader(res.Body, res.ContentLength/2), res.Body}
	res.Body = half
	return nil
}
