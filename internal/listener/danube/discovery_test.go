package danube

import (
	"fmt"
	"slices"
	"testing"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"google.golang.org/grpc/codes"
)

func TestLookup(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "http://levee:6650"}, // what the client used itself
		{Config{TLS: true}, "https://levee:6650"},
		{Config{Advertise: "broker.example:1"}, "http://broker.example:1"},
		{Config{Advertise: "broker.example:1", TLS: true}, "https://broker.example:1"},
		{Config{Advertise: "https://broker.example:1"}, "https://broker.example:1"},
	} {
		t.Run(fmt.Sprint(c.cfg.Advertise, c.cfg.TLS), func(t *testing.T) {
			bubble(t, c.cfg, func(f *fixture) {
				f.create("default/t", 1, broker.Reliable)
				resp, err := f.discovery.TopicLookup(f.ctx, &api.TopicLookupRequest{RequestId: 4, Topic: "/default/t"})
				if err != nil {
					t.Fatal(err)
				}
				if resp.RequestId != 4 || resp.ResponseType != api.TopicLookupResponse_Connect || resp.ConnectUrl != c.want || resp.BrokerUrl != c.want || resp.Proxy {
					t.Errorf("got %v, want %s", resp, c.want)
				}
			})
		})
	}
}

func TestTopicPartitions(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.create("default/one", 1, broker.Reliable)
		f.create("default/three", 3, broker.Reliable)
		for _, n := range []int{10, 2, 0} { // as a producer makes them
			f.create(fmt.Sprint("default/made-part-", n), 1, broker.Reliable)
		}
		f.create("default/made-part-x", 1, broker.Reliable)
		f.create("default/made-part-01", 1, broker.Reliable)
		for topic, want := range map[string][]string{
			"/default/one":          {"/default/one"},
			"/default/three":        {"/default/three-part-0", "/default/three-part-1", "/default/three-part-2"},
			"/default/three-part-1": {"/default/three-part-1"},
			"/default/made":         {"/default/made-part-0", "/default/made-part-2", "/default/made-part-10"},
			"/default/made-part-2":  {"/default/made-part-2"},
		} {
			resp, err := f.discovery.TopicPartitions(f.ctx, &api.TopicLookupRequest{RequestId: 1, Topic: topic})
			if err != nil || !slices.Equal(resp.Partitions, want) || resp.RequestId != 1 {
				t.Errorf("%s: got %v (%v), want %v", topic, resp, err, want)
			}
			if _, err := f.discovery.TopicLookup(f.ctx, &api.TopicLookupRequest{Topic: topic}); err != nil {
				t.Errorf("%s: %v", topic, err)
			}
		}
		for topic, want := range map[string]codes.Code{
			"/default/none": codes.NotFound, "/default/three-part-3": codes.NotFound, "/default/one-part-0": codes.NotFound,
			"/none/one": codes.NotFound, "default/one": codes.InvalidArgument, "/default/": codes.InvalidArgument,
		} {
			_, err := f.discovery.TopicPartitions(f.ctx, &api.TopicLookupRequest{Topic: topic})
			wantCode(t, err, want)
			_, err = f.discovery.TopicLookup(f.ctx, &api.TopicLookupRequest{Topic: topic})
			wantCode(t, err, want)
		}
	})
}

// A broker that cannot tell whether a topic stands does not send its clients away.
func TestHealthWhenNobodyKnows(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		id := f.newProducer("/default/t", "p")
		f.fail("Topic", fault.New(fault.Unavailable, "later"))
		if !f.healthy(api.HealthCheckRequest_Producer, id) {
			t.Error("the producer is not healthy")
		}
	})
}

func TestStorage(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		resp, err := api.NewStorageServiceClient(f.conn).ListSegmentDescriptors(f.ctx, &api.ListSegmentDescriptorsRequest{Topic: "/default/t"})
		if err != nil || len(resp.Segments) != 0 {
			t.Errorf("got %v, %v", resp, err)
		}
	})
}

func TestPlacesAreBounded(t *testing.T) {
	s := newService(Config{}, newFakeBroker())
	for i := range mostPlaces + 10 {
		s.remember(fmt.Sprint(i), place{})
	}
	n := 0
	for range s.places.Range {
		n++
	}
	if n > 10 {
		t.Errorf("%d places are kept", n)
	}
}
