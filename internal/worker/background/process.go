package background

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/longlived"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// process is a background process that runs or has ended.
type process struct {
	lifetime *longlived.Lifetime // nil if it ended before this sandbox was opened
	input    chan []byte         // nil without a terminal
	keep     func(*spool.Spool) (protocol.CallID, error)

	mu      sync.Mutex
	status  wire.ProcessStatus
	output  longlived.Tail
	written *spool.Spool  // nil once it has ended
	changed chan struct{} // closed at the next output
	err     error         // why it could not be started
}

// running is the reason of a process that lives.
const running = "running"

func newProcess(handle, command string, life *longlived.Lifetime) *process {
	return &process{
		lifetime: life, changed: make(chan struct{}), output: longlived.Tail{Keep: KeepBytes},
		status: wire.ProcessStatus{
			Process: handle, Command: command, StartedAt: time.Now().UTC().Truncate(time.Millisecond), Reason: running, ExitCode: -1,
		},
	}
}

// run runs the command to its end.
func (p *process) run(ctx context.Context, s sandbox.Sandbox, cmd sandbox.Cmd, live func(sandbox.Stream, []byte)) {
	cmd.Limits.Output = 1 // p.output and p.written have the output
	cmd.Live = func(stream sandbox.Stream, data []byte) {
		p.write(stream, data)
		if live != nil {
			live(stream, data)
		}
	}
	result, err := s.Exec(ctx, cmd)
	kept := p.storeOutput()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written, p.status.Kept = nil, kept
	p.status.Reason, p.status.ExitCode, p.status.Signal = string(result.Reason), result.ExitCode, result.Signal
	if err != nil {
		p.err, p.status.Reason, p.status.ExitCode = err, string(sandbox.ReasonLost), -1
	}
}

// storeOutput stores what an ended process wrote, if it is more than its reader is shown at once,
// and returns under which id; "" when it is not kept.
func (p *process) storeOutput() (id protocol.CallID) {
	if total := p.written.Total(sandbox.Stdout, sandbox.Stderr); total > plain.MaxShown && p.written.Err() == nil {
		id, _ = p.keep(p.written) // which logs its error
	}
	_ = p.written.Close() // it is not read any more
	return id
}

func (p *process) write(stream sandbox.Stream, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written.Write(stream, data)
	p.output.Write(data)
	p.status.Bytes = p.output.Total()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *process) isRunning() bool { return p.state().Reason == running }

func (p *process) state() wire.ProcessStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// fault is why the process could not be run because the caller asked for the wrong thing.
func (p *process) fault() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := errors.AsType[*protocol.Error](p.err); ok || errors.Is(p.err, sandbox.ErrUnsupported) {
		return p.err
	}
	return nil
}

// await waits for output from offset on, or for the end.
func (p *process) await(ctx context.Context, offset int64) {
	for {
		p.mu.Lock()
		news, enough := p.changed, offset < p.output.Total()
		p.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-news:
		case <-p.lifetime.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// quiet is for how long a process writes nothing that has written all that it will for now.
const quiet = 250 * time.Millisecond

// awaitQuiet waits until there is output from an offset on and no more comes, for the end, and for
// no longer than the time.
func (p *process) awaitQuiet(ctx context.Context, from int64, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for p.await(ctx, from); ctx.Err() == nil && p.isRunning(); {
		at := p.state().Bytes
		waiting, stop := context.WithTimeout(ctx, quiet)
		p.await(waiting, at)
		stop()
		if p.state().Bytes == at {
			return
		}
	}
}

func (p *process) read(offset, limit int64) wire.ProcessReadResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	content, at := p.output.Read(offset, limit)
	dropped := p.output.Base
	if p.hasAll() {
		dropped = 0
		if early := p.spooled(offset, min(limit, at-offset)); len(early) > 0 {
			content, at = early, offset
		}
	}
	return wire.ProcessReadResult{
		ProcessStatus: p.status, Content: content, Offset: at, NextOffset: at + int64(len(content)),
		Dropped: dropped,
	}
}

// hasAll reports whether all that the process wrote can be read. The caller has the lock.
func (p *process) hasAll() bool {
	return p.written != nil && p.written.Err() == nil && p.written.Missing(sandbox.Stdout, sandbox.Stderr) == 0
}

// spooled is output that the ring does not have any more; nothing when it has, or the file fails.
// The caller has the lock.
func (p *process) spooled(offset, limit int64) []byte {
	if offset < 0 || limit <= 0 {
		return nil
	}
	all := p.written.Reader(sandbox.Stdout, sandbox.Stderr)
	_, _ = io.CopyN(io.Discard, all, offset) // then nothing follows
	content, _ := io.ReadAll(io.LimitReader(all, limit))
	return content
}

// KeepBytes is how much of a process's output is in memory, from its end.
const KeepBytes = 256 << 10

// maxFile bounds the file: [MaxEnded] processes, each with [KeepBytes] in base64 and its state.
const maxFile = 2 * MaxEnded * KeepBytes

// record is an ended process in the file.
type record struct {
	Status wire.ProcessStatus `json:"status"`
	Offset int64              `json:"offset"`
	Output []byte             `json:"output"`
}

// load reads the file once. What cannot be read is not known any more. The caller has the lock.
func (ps *Processes) load() {
	if ps.loaded {
		return
	}
	ps.loaded = true
	body, err := regular.Read(ps.file, maxFile)
	var records []record
	if err != nil || json.Unmarshal(body, &records) != nil {
		return
	}
	for _, r := range records {
		p := newProcess("", "", nil)
		p.status, p.output.Data, p.output.Base = r.Status, r.Output, r.Offset
		ps.all = append(ps.all, p)
	}
}

// save writes the file. A disk that is full costs the memory of what has ended. The caller has the
// lock.
func (ps *Processes) save() {
	var records []record
	for _, p := range ps.all {
		if p.isRunning() {
			continue
		}
		p.mu.Lock()
		output, offset := p.output.Read(0, KeepBytes)
		records = append(records, record{Status: p.status, Offset: offset, Output: output})
		p.mu.Unlock()
	}
	if body, err := json.Marshal(records); err == nil {
		_ = regular.Replace(ps.file, body)
	}
}
