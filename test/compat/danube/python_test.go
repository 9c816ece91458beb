package danube

import (
	"testing"

	admin "github.com/leveemq/levee/api/danube/admin"
	"github.com/leveemq/levee/test/compat/python"
)

// TestPythonClient runs the published Python client unchanged: see testdata/scenarios.py for what it does.
func TestPythonClient(t *testing.T) {
	python.Interpreter(t)
	for name, meanwhile := range map[string]func(*rig, *python.Script){
		"exclusive": nil, "non_reliable": nil, "shared": nil, "failover": nil, "key_shared": nil, "key_filters": nil, "partitioned": nil,
		"nack": nil, "schemas": nil,
		"dead_letters": func(r *rig, s *python.Script) {
			s.Says("subscribed")
			if _, err := r.topics().SetSubscriptionFailurePolicy(r.ctx, &admin.SetSubscriptionFailurePolicyRequest{
				Topic: "/default/t", Subscription: "sub", FailurePolicy: &admin.SubscriptionFailurePolicy{
					MaxRedeliveryCount: 1, AckTimeoutMs: 30_000, BaseRedeliveryDelayMs: 10, MaxRedeliveryDelayMs: 10,
				},
			}); err != nil {
				t.Error(err)
			}
			s.GoOn()
			s.Says("done")
			topics := r.Dial().Admin()
			r.Await("done with the dead letter", func() bool {
				list, err := topics.Topics(r.ctx, "default")
				if err != nil {
					r.t.Fatal(err)
				}
				return len(list) == 2 && list[1].Name == "default/t-sub-dlq"
			})
		},
		"restart": func(r *rig, s *python.Script) {
			s.Says("kill")
			r.crash()
			s.GoOn()
			s.Says("done")
		},
		"deleted": func(r *rig, s *python.Script) {
			s.Says("delete")
			if _, err := r.topics().DeleteTopic(r.ctx, &admin.TopicRequest{Name: "/default/t"}); err != nil {
				t.Error(err)
			}
			s.GoOn()
			s.Says("done")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			s := python.Start(r.ctx, t, "testdata/scenarios.py", "http://"+r.door.Addr, name)
			if meanwhile == nil {
				s.Says("done")
				return
			}
			meanwhile(r, s)
		})
	}
}
