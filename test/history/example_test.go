package history_test

import (
	"fmt"

	"github.com/leveemq/levee/test/history"
)

// A test writes down what it publishes and what it reads back, and has that judged.
func Example() {
	h := history.New()
	p := h.Producer(history.ProducerInfo{Client: "a", Topic: "default/orders", Incarnation: 1, Idempotent: true})
	v, w := p.Begin(0), p.Begin(0) // names the record: the value is what the test puts into its payload
	h.End(v, history.OK, 0, false, nil)
	h.End(w, history.OK, 1, false, nil)
	h.Fault("kill", h.Now(), history.Cost{})

	r := h.Reading("default/orders", 1, 0, "broker 1", 0)
	r.Record(0, v)
	r.End(1) // the broker says that the log ends at 1

	for _, found := range h.Check(history.Options{}).Violations {
		fmt.Println(found)
	}
	// Output:
	// check 1: default/orders@1 partition 0: value 0/1 was acknowledged at offset 1 and is lost: for reading 0 of broker 1 the log ends at 1
}
