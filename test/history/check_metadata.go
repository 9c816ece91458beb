package history

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// seconds writes a time of a history.
func seconds(at int64) string { return strconv.FormatFloat(float64(at)/1e9, 'f', 3, 64) + " s" }

// metadata checks that all that was done to a topic name looks as if it had been done at one moment each, between its
// beginning and its end, and that local reads do not go back.
func (c *checker) metadata(calls []MetadataCall) {
	c.localReads(calls)
	deadline := time.Now().Add(c.o.MetadataTime)
	byTopic := topicOperations(calls)
	// Each topic has its share of the time, so that a hard one does not hide what is wrong with others; those that need
	// more share what is left in the end.
	hard := c.judge(byTopic, sortedKeys(byTopic), deadline)
	for _, topic := range c.judge(byTopic, hard, deadline) {
		c.r.Undecided = append(c.r.Undecided, fmt.Sprintf("topic %s: its %d metadata operations were not judged within %v", topic, len(byTopic[topic]), c.o.MetadataTime))
	}
}

// judge judges topics, and returns those for which the time was too short.
func (c *checker) judge(byTopic map[string][]porcupine.Operation, topics []string, deadline time.Time) (hard []string) {
	for i, topic := range topics {
		share := time.Until(deadline) / time.Duration(len(topics)-i)
		result := porcupine.Unknown
		if share > 0 {
			result = porcupine.CheckOperationsTimeout(topicModel, byTopic[topic], share)
		}
		switch result {
		case porcupine.Ok:
		case porcupine.Unknown:
			hard = append(hard, topic)
		case porcupine.Illegal:
			c.complain(CheckMetadata, "topic %s: its %d metadata operations do not fit into any order%s", topic, len(byTopic[topic]), c.draw(byTopic[topic]))
		}
	}
	return hard
}

// draw draws the first topic that fails, and says where.
func (c *checker) draw(ops []porcupine.Operation) string {
	if c.o.Visualization == "" || c.r.Found[CheckMetadata] > 0 {
		return ""
	}
	_, info := porcupine.CheckOperationsVerbose(topicModel, ops, c.o.MetadataTime)
	if err := porcupine.VisualizePath(topicModel, info, c.o.Visualization); err != nil {
		return fmt.Sprintf(" (could not be drawn: %v)", err)
	}
	return ", see " + c.o.Visualization
}

// topicOperations sorts what is to be judged by topic. A list is a reading of each topic it should contain. What has an
// unknown outcome has no end: it may happen at any time.
func topicOperations(calls []MetadataCall) map[string][]porcupine.Operation {
	byTopic := map[string][]porcupine.Operation{}
	told := map[string]map[string]bool{} // by topic: settings that somebody was told
	clients := map[string]int{}
	for i := range calls {
		m := &calls[i]
		if m.info.Op == opList {
			for _, topic := range m.result.Topics {
				byTopic[topic] = nil
			}
			continue
		}
		byTopic[m.info.Topic] = nil
		if m.info.Op == opDescribe {
			if told[m.info.Topic] == nil {
				told[m.info.Topic] = map[string]bool{}
			}
			told[m.info.Topic][m.result.Settings] = true
		}
	}
	for i := range calls {
		m := calls[i]
		if _, ok := clients[m.info.Client]; !ok {
			clients[m.info.Client] = len(clients)
		}
		certain := m.outcome == OK || m.outcome == Fail
		reads := m.info.Op == opDescribe || m.info.Op == opList
		switch {
		case reads && (m.info.Local || m.outcome != OK && m.result.Error != NotFound):
			continue // judged elsewhere, or without a result
		case !certain && m.info.Op == opSettings && !told[m.info.Topic][m.info.Settings]:
			continue // nobody saw it: whether it happened makes no difference, and leaving it out saves much time
		}
		op := porcupine.Operation{ClientId: clients[m.info.Client], Input: m.info, Output: answer{m.outcome, m.result}, Call: m.start, Return: m.end}
		if !certain {
			op.Return = math.MaxInt64
		}
		if m.info.Op != opList {
			byTopic[m.info.Topic] = append(byTopic[m.info.Topic], op)
			continue
		}
		listed := map[string]bool{}
		for _, topic := range m.result.Topics {
			listed[topic] = true
		}
		for topic := range byTopic {
			if strings.HasPrefix(topic, m.info.Topic) {
				op.Output = answer{OK, MetadataResult{Exists: listed[topic]}}
				byTopic[topic] = append(byTopic[topic], op)
			}
		}
	}
	return byTopic
}

// answer is an operation's output.
type answer struct {
	outcome Outcome
	result  MetadataResult
}

// topicState is one topic name.
type topicState struct {
	exists      bool
	incarnation uint64 // 0: nobody was told yet
	before      uint64 // the highest incarnation known to have been, this one excepted
	settings    string
}

// topicModel is what a topic name may do.
var topicModel = porcupine.Model{
	Init: func() any { return topicState{} },
	Step: func(state, input, output any) (bool, any) {
		ok, next := state.(topicState).step(input.(MetadataInfo), output.(answer))
		return ok, next
	},
	DescribeOperation: func(input, output any) string {
		i, o := input.(MetadataInfo), output.(answer)
		return fmt.Sprintf("%s %s%s → %v %s", i.Client, i.Op, setting(i.Settings), o.outcome, describe(i.Op, o.result))
	},
	DescribeState: func(state any) string {
		s := state.(topicState)
		if !s.exists {
			return fmt.Sprintf("absent, last @%d", s.before)
		}
		return fmt.Sprintf("@%d%s", s.incarnation, setting(s.settings))
	},
}

func setting(s string) string {
	if s == "" {
		return ""
	}
	return " {" + s + "}"
}

func describe(op string, r MetadataResult) string {
	switch {
	case r.Error != "":
		return r.Error
	case (op == opDescribe || op == opList) && !r.Exists:
		return "absent"
	}
	return fmt.Sprintf("@%d%s", r.Incarnation, setting(r.Settings))
}

// meets reports whether an incarnation that somebody was told may be the present one, and returns the state with that
// known.
func (s topicState) meets(incarnation uint64) (bool, topicState) {
	switch {
	case incarnation == 0:
		return true, s
	case s.incarnation == 0:
		s.incarnation = incarnation
		return incarnation > s.before, s
	}
	return incarnation == s.incarnation, s
}

func (s topicState) gone() topicState { return topicState{before: max(s.before, s.incarnation)} }

func (s topicState) step(i MetadataInfo, a answer) (bool, topicState) {
	switch a.outcome {
	case OK:
		return s.done(i, a.result)
	case Fail:
		switch a.result.Error {
		case AlreadyExists:
			return s.exists, s
		case NotFound:
			return !s.exists, s
		}
		return true, s
	}
	// It may have been done, and then only where it could be.
	switch {
	case i.Op == opCreate && !s.exists:
		return true, topicState{exists: true, before: s.before, settings: i.Settings}
	case i.Op == opDelete && s.exists:
		return true, s.gone()
	case i.Op == opSettings && s.exists:
		s.settings = i.Settings
	}
	return true, s
}

// done is an operation that its client knows to have been done.
func (s topicState) done(i MetadataInfo, r MetadataResult) (bool, topicState) {
	if i.Op == opCreate {
		next := topicState{exists: true, incarnation: r.Incarnation, before: s.before, settings: i.Settings}
		return !s.exists && (r.Incarnation == 0 || r.Incarnation > s.before), next
	}
	read := i.Op == opDescribe || i.Op == opList
	if read && !r.Exists {
		return !s.exists, s
	}
	ok, next := s.meets(r.Incarnation)
	ok = ok && s.exists
	switch i.Op {
	case opDescribe:
		ok = ok && s.settings == r.Settings
	case opDelete:
		next = next.gone()
	case opSettings:
		next.settings = i.Settings
	}
	return ok, next
}
