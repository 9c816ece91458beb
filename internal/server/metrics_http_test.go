package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/leveemq/levee/api/danube"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// TestMetricsOverHTTP reads what a monitoring system would: the text form, with the help texts, kinds and labels of
// docs/metrics.md, nothing missing and nothing else, and with names as such systems want them.
func TestMetricsOverHTTP(t *testing.T) {
	tiers := map[string]string{"storage.mode": "shared_fs", "storage.root": t.TempDir(), "valkey.mode": "single", "valkey.addresses": miniredis.RunT(t).Addr(), "valkey.timeout": "5s"}
	s := &site{t, t.TempDir(), tiers, &movements{rose: map[string]bool{}, fell: map[string]bool{}}}
	m := s.start(disk{vfs.NewMem()}, "a")
	m.create(broker.TopicSpec{Name: "a"})
	// A metric with labels is served once it has a series: make something of everything.
	m.refused("nothing", pack(t, record.NoProducer, "1"))
	client := leveev1.NewStreamClient(m.dial(&wire{}))
	for _, topic := range []string{"a", "nothing"} {
		_, err := client.PublishOnce(t.Context(), &leveev1.PublishOnceRequest{Topic: topic, Records: []*leveev1.Record{{Value: []byte("1")}}})
		if (err == nil) != (topic == "a") {
			t.Fatal(err)
		}
	}
	moveStreams(m, client)
	if _, err := danube.NewProducerServiceClient(m.dial(&wire{})).SendMessage(t.Context(), &danube.StreamMessage{
		MsgId: &danube.MsgID{TopicName: "/default/nothing"},
	}); err == nil {
		t.Fatal("a message to nowhere was taken")
	}
	readyz(t, m.running)

	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + m.listening.HTTP + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Errorf("%d, %q", resp.StatusCode, kind)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := documentedMetrics(t)
	var ours []*dto.MetricFamily
	for name, f := range families {
		if !strings.HasPrefix(name, "levee_") {
			continue
		}
		ours = append(ours, f)
		d, is := all[name]
		switch {
		case !is:
			t.Errorf("%s is served, and docs/metrics.md does not list it", name)
		case f.GetHelp() != d.help || strings.ToLower(f.GetType().String()) != d.kind:
			t.Errorf("%s is served as a %s: %q; docs/metrics.md says %s: %q", name, f.GetType(), f.GetHelp(), d.kind, d.help)
		}
		checkLabels(t, f, d.labels)
	}
	for name := range all {
		if families[name] == nil {
			t.Errorf("docs/metrics.md lists %s, and it is not served", name)
		}
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if families[name] == nil {
			t.Errorf("%s, of the runtime and the process, is not served", name)
		}
	}
	problems, err := promlint.NewWithMetricFamilies(ours).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func checkLabels(t *testing.T, f *dto.MetricFamily, want []string) {
	t.Helper()
	wanted := map[string]bool{}
	for _, l := range want {
		wanted[l] = true
	}
	for _, m := range f.GetMetric() {
		if len(m.GetLabel()) != len(want) {
			t.Errorf("%s has the labels %v, docs/metrics.md says %v", f.GetName(), m.GetLabel(), want)
		}
		for _, l := range m.GetLabel() {
			if !wanted[l.GetName()] {
				t.Errorf("%s has a label %s, docs/metrics.md says %v", f.GetName(), l.GetName(), want)
			}
		}
	}
}
