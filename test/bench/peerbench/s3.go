package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// s3D reads the segments that Levee has put into -bucket by nothing but ranged GETs of -size bytes, one after the other on
// one connection.
type s3D struct{}

var errOnlyConsume = errors.New("target s3 only consumes")

func (d *s3D) setup(context.Context)            {}
func (d *s3D) pub() pubFn                       { must(errOnlyConsume); return nil }
func (d *s3D) e2e(*hist) (int64, time.Duration) { must(errOnlyConsume); return 0, 0 }
func (d *s3D) idle(int) string                  { must(errOnlyConsume); return "" }

func (d *s3D) consume(_ int, h *hist) (int64, time.Duration) {
	objects := segments()
	buf := make([]byte, *size)
	var gets int64
	start := time.Now()
	for _, o := range objects {
		for at := int64(0); at < o.Size; at += int64(*size) {
			n := min(int64(*size), o.Size-at)
			begun := time.Now()
			resp := s3Get("/"+*inBucket+"/"+o.Key, "", fmt.Sprintf("bytes=%d-%d", at, at+n-1))
			must2(io.ReadFull(resp.Body, buf[:n]))
			must2(io.Copy(io.Discard, resp.Body))
			must(resp.Body.Close())
			h.add(time.Since(begun))
			readBytes += n
			gets++
		}
	}
	return gets, time.Since(start)
}

type s3Object struct {
	Key  string
	Size int64
}

// segments lists the bucket's, in the order of their keys.
func segments() (found []s3Object) {
	for token := ""; ; {
		query := url.Values{"list-type": {"2"}}
		if token != "" {
			query.Set("continuation-token", token)
		}
		resp := s3Get("/"+*inBucket, query.Encode(), "")
		var page struct {
			Contents              []s3Object
			IsTruncated           bool
			NextContinuationToken string
		}
		must(xml.NewDecoder(resp.Body).Decode(&page))
		must(resp.Body.Close())
		for _, o := range page.Contents {
			if strings.HasSuffix(o.Key, ".lvseg") {
				found = append(found, o)
			}
		}
		if !page.IsTruncated {
			return found
		}
		token = page.NextContinuationToken
	}
}

// mirrored is the size of an object of mirror: that of a segment in the runs of Levee beside it.
const mirrored = 32 << 20

// mirror puts as many bytes into -bucket as -rate messages of -size bytes are, for -secs, in objects of a segment's size, and
// reads each back: what exporting them asks of the store, without an exporter.
func (d *s3D) mirror() *result {
	body := make([]byte, mirrored)
	must2(rand.Read(body))
	var objects int64
	cli, srv, start := cpuSelf(), cpuOf(*pid), time.Now()
	paceDue(float64(*rate**size)/mirrored, start, time.Duration(*secs*1e9), func(time.Time) {
		path := fmt.Sprintf("/%s/plain/%d", *inBucket, objects)
		resp := s3Do(http.MethodPut, path, "", "", body)
		must(resp.Body.Close())
		resp = s3Get(path, "", "")
		must2(io.Copy(io.Discard, resp.Body))
		must(resp.Body.Close())
		objects++
	})
	return row(objects, 0, time.Since(start).Seconds(), &hist{}, cpuSelf()-cli, cpuOf(*pid)-srv)
}

func s3Get(path, query, ranged string) *http.Response {
	return s3Do(http.MethodGet, path, query, ranged, nil)
}

// s3Do sends a request that is signed as version 4 of the signatures wants it.
func s3Do(method, path, query, ranged string, content []byte) *http.Response {
	key, secret, region := os.Getenv("LEVEE_OBJECT_STORE_ACCESS_KEY"), os.Getenv("LEVEE_OBJECT_STORE_SECRET_KEY"), os.Getenv("LEVEE_OBJECT_STORE_REGION")
	req := must2(http.NewRequest(method, "http://"+*addr+path+"?"+query, bytes.NewReader(content)))
	now := time.Now().UTC()
	stamp, day := now.Format("20060102T150405Z"), now.Format("20060102")
	scope := day + "/" + region + "/s3/aws4_request"
	const body, signed = "UNSIGNED-PAYLOAD", "host;x-amz-content-sha256;x-amz-date"
	canonical := strings.Join([]string{
		method, path, query, "host:" + *addr, "x-amz-content-sha256:" + body, "x-amz-date:" + stamp, "", signed, body,
	}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	mac := []byte("AWS4" + secret)
	for _, part := range []string{day, region, "s3", "aws4_request", "AWS4-HMAC-SHA256\n" + stamp + "\n" + scope + "\n" + hex.EncodeToString(sum[:])} {
		h := hmac.New(sha256.New, mac)
		h.Write([]byte(part))
		mac = h.Sum(nil)
	}
	req.Header.Set("X-Amz-Content-Sha256", body)
	req.Header.Set("X-Amz-Date", stamp)
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+key+"/"+scope+", SignedHeaders="+signed+", Signature="+hex.EncodeToString(mac))
	if ranged != "" {
		req.Header.Set("Range", ranged)
	}
	resp := must2(http.DefaultClient.Do(req))
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		must(fmt.Errorf("%s: %s: %s", path, resp.Status, text))
	}
	return resp
}

// countPath is where a proxy tells how many requests it has passed on that read something.
const countPath = "/-/requests"

// runProxy stands before -addr until it is ended. What is signed stays as it is: the host's name is a part of that.
func runProxy() {
	loopback(*addr)
	loopback(*proxy)
	var count atomic.Int64
	pass := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", *addr }}
	must(http.ListenAndServe(*proxy, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == countPath {
			fmt.Fprintln(w, count.Load())
			return
		}
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			count.Add(1)
			time.Sleep(*delay)
		}
		pass.ServeHTTP(w, r)
	})))
}

// proxied asks -proxy.
func proxied() int64 {
	resp := must2(http.Get("http://" + *proxy + countPath))
	defer resp.Body.Close()
	text := must2(io.ReadAll(resp.Body))
	return must2(strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64))
}
