package valkey

import (
	"cmp"

	"github.com/valkey-io/valkey-go"
)

// manner is how the calls of a trip are sent. What the server has not done in one manner is sent in the next.
type manner int

const (
	asTransactions manner = iota // appends as transactions, everything else as scripts by their name
	byName
	byText // for a server that does not know the scripts by their names
)

// What appends carry on average for a trip to have them in transactions: below that the commands around the frames cost more
// than the frames in a script. And how many trips go without where a server refused a transaction and ran the script: what
// refuses may pass, like a slot that moves to another node.
const (
	transactionFrom = 8 << 10
	transactionRest = 256
)

// manner says how a trip begins. It is one for all of its appends: where a partition's first is refused, so are those behind
// it, and all are sent again in order.
func (l *lane) manner(trip []*call) manner {
	if l.barred {
		return byName
	}
	if l.rest > 0 {
		l.rest--
		return byName
	}
	size, count := 0, 0
	for _, c := range trip {
		if len(c.frames) > 0 {
			count++
			size += c.size
		}
	}
	if count == 0 || size/count < l.s.large {
		return byName
	}
	return asTransactions
}

// commands adds what a call is sent as.
func (c *call) commands(to valkey.Commands, b valkey.Builder, how manner) valkey.Commands {
	name, what := "EVALSHA", c.script.sha
	switch {
	case how == asTransactions && len(c.frames) > 0:
		return c.transaction(to, b)
	case how == byText:
		name, what = "EVAL", c.script.text
	}
	return append(to, b.Arbitrary(name, what, "2", c.keys[0], c.keys[1]).Args(c.args...).Args(c.frames...).Build())
}

// count is how many commands that is.
func (c *call) count(how manner) int {
	if how == asTransactions && len(c.frames) > 0 {
		return len(c.frames) + 4
	}
	return 1
}

// transaction adds the commands of an append. What stands aside is named as scripts name it: see prelude.
func (c *call) transaction(to valkey.Commands, b valkey.Builder) valkey.Commands {
	stream, record := c.keys[0], c.keys[1]
	aside := stream[:len(stream)-1] + "t"
	generation, floor, first := c.args[0], c.args[1], c.args[2]
	to = append(to, b.Arbitrary("MULTI").Build(),
		b.Arbitrary("EVALSHA", beginScript.sha, "2", stream, record, generation, floor, first).Build())
	for i, f := range c.frames {
		to = append(to, b.Arbitrary("XADD", aside, "NOMKSTREAM", decimal(c.first+uint64(i))+"-0", "f", f).Build())
	}
	return append(to, b.Arbitrary("EVALSHA", endScript.sha, "2", stream, record, decimal(uint64(len(c.frames)))).Build(),
		b.Arbitrary("EXEC").Build())
}

// transacted reads the answers. done says that the append was made. An error that is no answer leaves that open. After
// everything else nothing was done, or what was done does no harm to the script that is asked then: it finds the same bytes.
func (l *lane) transacted(c *call, own []valkey.ValkeyResult) (done bool, err error) {
	answers, err := own[len(own)-1].ToArray() // EXEC's
	for i := range answers {
		if why := answers[i].Error(); !valkey.IsValkeyNil(why) { // nil: an XADD that found no stream aside
			err = cmp.Or(err, why)
		}
	}
	if err == nil && len(answers) > 0 {
		c.word, c.rest, _ = readAnswer(answers[len(answers)-1])
	}
	if _, answered := asAnswer(err); err != nil && !answered {
		return false, err
	}
	c.refused = err != nil
	l.loaded = l.loaded && !isNoScript(err)
	return c.word == "OK", nil
}
