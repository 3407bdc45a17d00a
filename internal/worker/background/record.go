package background

import (
	"encoding/json"
	"os"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// record is an ended process in the file.
type record struct {
	Status protocol.ProcessStatus `json:"status"`
	Offset int64                  `json:"offset"`
	Output []byte                 `json:"output"`
}

// load reads the file once. What cannot be read is not known any more. The caller has the lock.
func (ps *Processes) load() {
	if ps.loaded {
		return
	}
	ps.loaded = true
	body, err := os.ReadFile(ps.file)
	var records []record
	if err != nil || json.Unmarshal(body, &records) != nil {
		return
	}
	for _, r := range records {
		p := newProcess("", "", nil)
		p.status, p.output = r.Status, ring{data: r.Output, base: r.Offset}
		close(p.done)
		ps.all = append(ps.all, p)
	}
}

// save writes the file: a copy at the side and a rename, so that it is always whole. A
// disk that is full costs the memory of what has ended. The caller has the lock.
func (ps *Processes) save() {
	var records []record
	for _, p := range ps.all {
		if p.lives() {
			continue
		}
		p.mu.Lock()
		p.output.trim()
		records = append(records, record{Status: p.status, Offset: p.output.base, Output: p.output.data})
		p.mu.Unlock()
	}
	body, err := json.Marshal(records)
	if err != nil {
		return
	}
	if os.WriteFile(ps.file+".new", body, 0o600) == nil {
		_ = os.Rename(ps.file+".new", ps.file)
	}
}
