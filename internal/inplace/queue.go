// Package inplace orders calls that use one directory in place, across the processes of a user.
//
// A lane orders the calls of one fleet. Each coordinator without --nats is a fleet of its own, so
// two of them in one directory share no lane. They share a [Queue]: a folder of tickets, one file
// for each call that runs or waits.
//
//	enter, under the folder's lock        await, one after the other           leave
//	number = last + 1, own file locked ─► each earlier ticket that conflicts ─► file removed
//
// A ticket's owner holds an exclusive lock on its file. The kernel releases it when the process
// ends, so a crash blocks nobody. Only earlier tickets are awaited. So every call gets its turn, in
// the order of the numbers, and no two tickets wait for each other.
//
// A directory is known by device and inode, and so are its ancestors. Two directories are related
// if they are the same one, or one contains the other. In the same directory calls conflict as in
// a lane, by their resources. In related ones they conflict if one of them is exclusive.
//
// A process's calls of one lane never await each other: the lane orders them.
//
// Of a process that was killed the sandboxes may outlive the lock for a moment. So a process that
// finds a ticket without its owner gives them a second.
package inplace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Env is the variable that names the owners whose commands started this process, separated by
// commas. While such a command runs, its ticket covers this process too: to wait for it, or for
// those who wait for it, would never end.
const Env = "TOOLFLEET_IN_PLACE"

const (
	// lookAgain is how often a locked file is tried again.
	lookAgain = 5 * time.Millisecond
	// reportAfter is how long a call waits before it reports what for.
	reportAfter = time.Second
	// grace is how long the sandboxes of a process that was killed may take to die.
	grace = time.Second
	// maxTicket bounds what is read of a ticket, in bytes.
	maxTicket = 1 << 20
	// litter is how old a ticket of a dead process becomes before others remove it.
	litter = 24 * time.Hour
	// locked is the file in the folder that is locked while a ticket is made.
	locked = "lock"
)

// Queue is a folder of tickets. It is safe for concurrent use by several processes.
type Queue struct {
	id     string // begins the owners of this one's tickets: another process may name its own alike
	folder string
	within []string // owners whose commands started this process
}

// OpenOwn opens the queue of this user on this machine, in the state folder.
func OpenOwn() (*Queue, error) {
	folder, err := cli.StateDir("in-place")
	if err != nil {
		return nil, err
	}
	return Open(folder)
}

// Change changes a directory while no call of any process uses it in place. A program waits for its
// turn, and reports for whom. Without a state folder there is no order.
func Change(ctx context.Context, dir, program string, session protocol.SessionID, report func(string), change func() error) error {
	queue, err := OpenOwn()
	if dir == "" || err != nil {
		return change()
	}
	use := Use{Directory: dir, Owner: string(session) + " " + program, Program: program, Session: session}
	leave, err := queue.Lock(ctx, use, func(holder string) { report(program + " waits for: " + holder) })
	if err != nil {
		return err
	}
	defer leave()
	return change()
}

// Open makes the folder, unless it exists.
func Open(folder string) (*Queue, error) {
	q := &Queue{id: uuid.NewString(), folder: folder}
	if within := os.Getenv(Env); within != "" {
		q.within = strings.Split(within, ",")
	}
	err := os.MkdirAll(folder, 0o700)
	if err == nil {
		err = q.writable()
	}
	if err != nil {
		return nil, err
	}
	return q, nil
}

// writable tries to make a file, which a read-only file system refuses only then.
func (q *Queue) writable() error {
	file, err := os.CreateTemp(q.folder, "try-")
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// EnvOf is the value of [Env] for commands of an owner.
func (q *Queue) EnvOf(owner string) string {
	return strings.Join(append(slices.Clone(q.within), q.owner(owner)), ",")
}

func (q *Queue) owner(name string) string { return q.id + "/" + name }

// Use describes the use of a directory; all fields but Uses are required.
type Use struct {
	// Directory is the path of the directory.
	Directory string
	// Owner identifies the lane in this process. Tickets of the same owner do not conflict.
	Owner string
	// Program and Session are shown to those who wait.
	Program string
	Session protocol.SessionID
	// Uses are the resources in the directory; none is the whole directory, exclusively.
	Uses []protocol.Use
}

// ticket is the content of a file.
type ticket struct {
	PID       int                `json:"pid"`
	Owner     string             `json:"owner"`
	Program   string             `json:"program"`
	Session   protocol.SessionID `json:"session"`
	Since     time.Time          `json:"since"`
	Directory string             `json:"directory"`
	Lineage   []string           `json:"lineage"` // the directory and its ancestors, by device and inode
	Uses      []protocol.Use     `json:"uses"`
	Within    []string           `json:"within,omitempty"` // owners whose commands started the process

	path string // of the file
}

// directoryKey stands for the directory in the resources of tickets.
const directoryKey protocol.ResourceKey = "sandbox/-"

func newTicket(use Use) (*ticket, error) {
	lineage, err := lineageOf(use.Directory)
	if err != nil {
		return nil, err
	}
	t := &ticket{
		PID: os.Getpid(), Owner: use.Owner, Program: use.Program, Session: use.Session,
		Since: time.Now().UTC(), Directory: use.Directory, Lineage: lineage,
	}
	for _, u := range use.Uses {
		below := strings.TrimPrefix(string(u.Key), string(u.Key.Lane()))
		t.Uses = append(t.Uses, protocol.Use{Key: directoryKey + protocol.ResourceKey(below), Access: u.Access})
	}
	if len(t.Uses) == 0 {
		t.Uses = []protocol.Use{{Key: directoryKey, Access: protocol.Exclusive}}
	}
	return t, nil
}

// conflicts reports whether two tickets must not be used at the same time.
func (t *ticket) conflicts(other *ticket) bool {
	if t.Owner == other.Owner || len(t.Lineage) == 0 || len(other.Lineage) == 0 {
		return false
	}
	if t.Lineage[0] == other.Lineage[0] {
		return slices.ContainsFunc(t.Uses, func(u protocol.Use) bool {
			return slices.ContainsFunc(other.Uses, u.Conflicts)
		})
	}
	related := slices.Contains(t.Lineage, other.Lineage[0]) || slices.Contains(other.Lineage, t.Lineage[0])
	return related && (t.exclusive() || other.exclusive())
}

func (t *ticket) exclusive() bool {
	return slices.ContainsFunc(t.Uses, func(u protocol.Use) bool { return u.Access != protocol.Shared })
}

// String names the owner, for those who wait for it.
func (t *ticket) String() string {
	return fmt.Sprintf("process %d (%s, session %s), which uses %s since %s",
		t.PID, t.Program, t.Session, t.Directory, t.Since.Local().Format(time.TimeOnly))
}

// Lock waits until no earlier use conflicts with this one, and returns what ends it. After a
// second, waits is called with the use that is waited for, and again for each further one; nil is
// fine. The error is that of ctx, or of the folder.
func (q *Queue) Lock(ctx context.Context, use Use, waits func(string)) (unlock func(), err error) {
	use.Owner = q.owner(use.Owner)
	t, err := newTicket(use)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", use.Directory, err)
	}
	unlock, earlier, err := q.enter(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", use.Directory, err)
	}
	for _, other := range earlier {
		if err := await(ctx, other, waits); err != nil {
			unlock()
			return nil, fmt.Errorf("lock %s: %w", use.Directory, err)
		}
	}
	return unlock, nil
}

// enter makes the file of a ticket, behind all others, and returns the tickets that it waits for.
func (q *Queue) enter(ctx context.Context, t *ticket) (leave func(), earlier []*ticket, err error) {
	folder := flock.New(filepath.Join(q.folder, locked), flock.SetPermissions(0o644))
	if _, err := folder.TryLockContext(ctx, time.Millisecond); err != nil {
		return nil, nil, err
	}
	defer func() { _ = folder.Close() }()
	entries, err := os.ReadDir(q.folder)
	if err != nil {
		return nil, nil, err
	}
	last, covered := uint64(0), false
	for _, entry := range entries {
		text, _, is := strings.Cut(entry.Name(), "-")
		number, err := strconv.ParseUint(text, 10, 64)
		if !is || err != nil {
			continue
		}
		last = max(last, number)
		other, err := read(filepath.Join(q.folder, entry.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // it left
		case err != nil:
			return nil, nil, err
		case slices.Contains(q.within, other.Owner):
			covered = true
		case t.conflicts(other):
			earlier = append(earlier, other)
		case time.Since(other.Since) > litter && stateOf(other.path) == dead:
			_ = os.Remove(other.path)
		}
	}
	if covered { // then others of the same command are all that may be in the way
		earlier = slices.DeleteFunc(earlier, func(other *ticket) bool { return !overlap(q.within, other.Within) })
	}
	t.Within = q.within
	t.path = filepath.Join(q.folder, fmt.Sprintf("%020d-%s", last+1, uuid.NewString()))
	leave, err = t.write()
	return leave, earlier, err
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(owner string) bool { return slices.Contains(b, owner) })
}

// write makes the file and locks it. The folder is locked.
func (t *ticket) write() (leave func(), err error) {
	content, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(t.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // another user who shares the folder waits for it
	if err != nil {
		return nil, err
	}
	// Some systems let nobody read a file's first byte while it is locked.
	_, err = file.Write(append([]byte{'\n'}, content...))
	lock := flock.New(t.path, flock.SetFlag(os.O_RDONLY))
	if err = errors.Join(err, file.Close()); err == nil {
		_, err = lock.TryLock()
	}
	leave = func() {
		_ = os.Remove(t.path) // before it is unlocked, so that nobody takes it for that of a dead process
		_ = lock.Close()
		_ = os.Remove(t.path) // where an open file cannot be removed
	}
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// read returns the ticket of a file. A ticket that cannot be decoded conflicts with nothing: its
// process was killed before it was locked.
func read(path string) (*ticket, error) {
	t := &ticket{path: path}
	file, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(1, 0); err != nil {
		return nil, err
	}
	_ = json.NewDecoder(io.LimitReader(file, maxTicket)).Decode(t)
	return t, nil
}

// state is that of a ticket.
type state int

const (
	held state = iota
	left
	dead // its process ended without leaving
)

func stateOf(path string) state {
	lock := flock.New(path, flock.SetFlag(os.O_RDONLY))
	free, err := lock.TryRLock()
	defer func() { _ = lock.Close() }()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return left
	case err == nil && free:
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) { // it left after the file was opened
			return left
		}
		return dead
	default:
		return held
	}
}

// await waits until a ticket is used no more.
func await(ctx context.Context, other *ticket, waits func(string)) error {
	begun := time.Now()
	for {
		switch stateOf(other.path) {
		case left:
			return nil
		case dead:
			if !pause.For(ctx, grace) {
				return ctx.Err()
			}
			_ = os.Remove(other.path) // another one who waited may have done it
			return nil
		case held:
		}
		if waits != nil && time.Since(begun) > reportAfter {
			waits(other.String())
			waits = nil
		}
		if !pause.For(ctx, lookAgain) {
			return ctx.Err()
		}
	}
}
