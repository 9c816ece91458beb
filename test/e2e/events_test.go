package e2e

import (
	"bufio"
	"io"
	"strings"
)

// event is one server-sent event.
type event struct{ id, name, data string }

// events reads server-sent events.
type events struct{ in *bufio.Reader }

func newEvents(r io.Reader) *events { return &events{bufio.NewReaderSize(r, 64<<10)} }

// next returns the next event that is not only a comment.
func (e *events) next() (event, error) {
	var ev event
	for {
		line, err := e.in.ReadString('\n')
		if err != nil {
			return event{}, err
		}
		line = strings.TrimSuffix(line, "\n")
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "id":
			ev.id = value
		case "event":
			ev.name = value
		case "data":
			ev.data += value
		case "":
			if line == "" && ev != (event{}) {
				return ev, nil
			}
		}
	}
}
