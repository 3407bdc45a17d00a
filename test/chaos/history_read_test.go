package chaos

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// newHistory returns an empty history.
func newHistory() *History { return &History{Calls: map[protocol.CallID]*Call{}} }

// Read adds the records of one process. A last line that was cut short, because
// the process was killed, is ignored.
func (h *History) Read(log io.Reader) error {
	open := map[execution]int{}
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("record %q: %w", line, err)
		}
		if err := h.add(&r, open); err != nil {
			return err
		}
	}
}

// execution tells the executions of one process apart.
type execution struct {
	call    protocol.CallID
	attempt int
}

var errUnknownRecord = errors.New("record of an unknown kind, or without its beginning")

func (h *History) add(r *Record, open map[execution]int) error {
	id := execution{r.CallID, r.Attempt}
	switch r.Kind {
	case KindStart:
		open[id] = len(h.Executions)
		h.Executions = append(h.Executions, Execution{
			CallID: r.CallID, Worker: r.Worker, Sequence: r.Sequence, Attempt: r.Attempt, Start: r.At, End: Never,
		})
		return nil
	case KindEnd:
		at, known := open[id]
		if !known {
			return fmt.Errorf("%w: end of call %s", errUnknownRecord, r.CallID)
		}
		delete(open, id)
		h.Executions[at].End, h.Executions[at].Status = r.At, r.Status
		return nil
	case KindTrouble:
		h.Troubles = append(h.Troubles, r.Message)
		return nil
	case KindStall, KindBlocked:
		h.Faults = append(h.Faults, Fault{
			Worker: r.Worker, From: r.At, Still: r.At, Until: r.Until, Stalled: r.Kind == KindStall, Blocked: r.Kind == KindBlocked,
		})
		return nil
	case KindPut:
		if h.Calls[r.CallID] == nil {
			h.Calls[r.CallID] = &Call{Call: *r.Call, FirstPut: r.At}
		}
		return nil
	}
	c := h.Calls[r.CallID]
	if c == nil {
		return fmt.Errorf("%w: %s of call %s", errUnknownRecord, r.Kind, r.CallID)
	}
	switch r.Kind {
	case KindAccepted:
		c.Accepted = true
	case KindRefused: // what became of it is open; its result will tell
	case KindCancel:
		c.Cancelled = true
	case KindHeard:
		c.Heard = r.At
	case KindTold:
		c.Told = append(c.Told, Told{r.At, Result{r.Status, r.Code, r.Worker, r.Attempt}})
	case KindGaveUp:
		c.GaveUp = true
	default:
		return fmt.Errorf("%w: kind %q", errUnknownRecord, r.Kind)
	}
	return nil
}
