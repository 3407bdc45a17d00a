//go:build linux

package initd

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/files"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// What is said while a sandbox starts.
const (
	// KindConfig is a Config: the first message to each stage of a sandbox that is a program, and
	// to the launcher with the sandbox's end of the control socket. The launcher answers by
	// KindLaunched or KindFailed.
	KindConfig   Kind = iota + 1
	KindLaunched      // Launched
	KindReady         // Ready, of the sandbox
	KindFailed        // Failed, of either
	KindListener      // a descriptor: a listener on the sandbox's loopback
	KindAborted       // of a sandbox that is no program yet: what [confine.Failed] reads
	KindLink          // of a sandbox that is no program yet: a descriptor, the other end of its link
)

// head is the start of a message of one frame, for a process that cannot [Conn.Send].
func head(kind Kind) []byte {
	frame := make([]byte, headerSize)
	frame[8] = byte(kind)
	return frame
}

// What a worker asks. Answers have the id and the kind of their requests.
const (
	KindExec   Kind = iota + 16 // Exec; descriptors: output, errors, and input if there is one; answered by Ended
	KindSignal                  // Signal; not answered
	KindFiles                   // a FileRequest, answered by a FileReply
	KindLease                   // Lease; not answered
	KindSocket                  // Socket; answered by a descriptor, or an Answer of nothing
)

// Identity is something in a workspace, and which file or directory that is.
type Identity struct {
	Path     string // relative to the workspace
	Link     string // what a symbolic link that stands there leads to; "" when there is none
	Dev, Ino uint64
}

// Launched has the process id of the sandbox's init, which is a child of the worker; or of the
// command of a guard, which is a child of that.
type Launched struct {
	PID int
}

// Failed says at which step the start of a sandbox, or of a command by its guard, has failed.
type Failed struct { //nolint:errname // a message that is an error, too
	Step   string
	Reason string
	Errno  int // 0 when the system did not refuse it
}

// Error implements the error interface.
func (f *Failed) Error() string { return f.Step + ": " + f.Reason }

// Failure returns the [*Failed] in a message of [KindFailed].
func (m *Message) Failure() error {
	failed := &Failed{}
	if err := m.Decode(failed); err != nil {
		return err
	}
	return failed
}

// Ready says that a sandbox has tested itself and serves.
type Ready struct {
	Landlock int // ABI; 0 when the kernel has none
}

// Exec is a command. Argv and Env were checked.
type Exec struct {
	Argv     []string
	Env      []string
	Path     string // PATH
	Dir      string
	ReadOnly bool
	Terminal bool // its input and output are those of a terminal
	Limits   Limits
}

// Limits bound a command; 0 means no limit. The kernel enforces them for each process, except
// memory and disk, which the first process watches for the whole command and the whole sandbox.
type Limits struct {
	CPU       uint64 // seconds
	Memory    uint64
	OpenFiles uint64
	FileSize  uint64
	Disk      uint64
}

// NewLimits returns the limits of a command, which are not negative.
func NewLimits(l sandbox.Limits) Limits {
	return Limits{
		CPU:       uint64((l.CPU + time.Second - 1) / time.Second), //nolint:gosec // as documented
		Memory:    uint64(l.Memory),                                //nolint:gosec // as above
		OpenFiles: uint64(l.OpenFiles),                             //nolint:gosec // as above
		FileSize:  uint64(l.FileSize),                              //nolint:gosec // as above
		Disk:      uint64(l.Disk),                                  //nolint:gosec // as above
	}
}

// Signal goes to a command and everything that it started.
type Signal struct {
	Command uint64
	Kill    bool // SIGKILL; else SIGTERM
}

// Lease says until when a sandbox may run.
type Lease struct {
	Deadline int64 // a start.Deadline
}

// Socket asks for a TCP socket in the sandbox's network.
type Socket struct {
	Family int // AF_INET or AF_INET6
}

// Answer is what came of a request.
type Answer[T any] struct {
	Fault *protocol.Error
	Error string // of the sandbox, not of the caller
	Value T
}

// Ended is how a command ended. Everything it started is dead, unless Left is set.
type Ended struct {
	Status uint32 // as wait(2) has it
	CPU    time.Duration
	MaxRSS int64 // bytes
	// Left says that something of the command could not be killed.
	Left bool
	// Over is why the first process has killed the command; "" when it has not.
	Over sandbox.Reason
}

// Config is what a sandbox is made of. It is read before there is a sandbox.
type Config struct {
	Files
	// Bwrap has bubblewrap make the namespaces and the mounts.
	Bwrap bool
	HostUser
	Reach

	Processes uint64
	Shm       int64 // bytes of shared memory
	Landlock  bool

	// Namespaces are the worker's, in the order of [NamespaceKinds]. The sandbox must not share
	// them, except the network if all of it is allowed.
	Namespaces []string
}

// Files are the host's directories and files that a sandbox sees.
type Files struct {
	Workspace string
	Home      string
	Temp      string
	Mounts    []isolation.Mount
	// Protected are paths of the workspace that are read-only, and Pinned the directories that
	// they are in, outer ones first, which stay where they are. All of them exist.
	Protected []Identity
	Pinned    []Identity
}

// HostUser is the user of a sandbox on the host.
type HostUser struct {
	// Privileged says that the worker is root: directories and mounts are opened with its rights.
	Privileged bool
	// HostUID and HostGID are the sandbox's user on the host. If Privileged, the launcher chooses a
	// new one, and in the sandbox files of the owner of the directories, OwnerUID and OwnerGID, are
	// that user's.
	HostUID  int
	HostGID  int
	OwnerUID int
	OwnerGID int
}

// Reach is what of the network a sandbox reaches.
type Reach struct {
	Network isolation.NetworkMode
	// Link gives the sandbox a link, to which these addresses lead, too.
	Link      bool
	Addresses []string
}

// FileRequest asks for one file operation. Body is its payload, packed.
type FileRequest struct {
	Operation string
	Roots     []protocol.Roots // see Within of [sandbox.FS]
	Body      []byte
}

// FileReply answers a [FileRequest]: the packed result, or one of Error, Closed and Failure is set.
type FileReply struct {
	Body    []byte
	Error   *protocol.Error
	Closed  bool   // [sandbox.ErrClosed]
	Failure string // every other error
}

// ServeFiles carries out a request that came from a [RemoteFS].
func ServeFiles(ctx context.Context, fs *files.FS, req *FileRequest) *FileReply {
	value, err := serveFile(ctx, fs, req)
	expected, isExpected := errors.AsType[*protocol.Error](err)
	switch {
	case err == nil:
		return &FileReply{Body: Pack(value)}
	case isExpected:
		return &FileReply{Error: expected}
	case errors.Is(err, sandbox.ErrClosed):
		return &FileReply{Closed: true}
	default:
		return &FileReply{Failure: err.Error()}
	}
}

func serveFile(ctx context.Context, fs *files.FS, req *FileRequest) (any, error) {
	op, err := files.Find(req.Operation)
	if err != nil {
		return nil, err
	}
	payload, err := unpackAs(op.Payload, req.Body)
	if err != nil {
		return nil, err
	}
	return fs.Do(ctx, payload, req.Roots)
}

// unpackAs returns a value of a type that was packed.
func unpackAs(t reflect.Type, packed []byte) (any, error) {
	value := reflect.New(t)
	err := Unpack(packed, value.Interface())
	return value.Elem().Interface(), err
}

// RemoteFS is the file operations of a workspace in another process. ask sends a request there,
// where [ServeFiles] carries it out, and returns the reply; it fails when that fails or ctx ends,
// and must be safe for concurrent use.
func RemoteFS(ask func(ctx context.Context, req *FileRequest) (*FileReply, error)) sandbox.FS {
	return sandbox.NewFS(func(ctx context.Context, payload protocol.Payload, roots []protocol.Roots) (protocol.Value, error) {
		op, err := files.Of(payload)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		reply, err := ask(ctx, &FileRequest{Operation: op.Name(), Roots: roots, Body: Pack(payload)})
		switch {
		case err != nil:
			return nil, err
		case reply.Error != nil:
			return nil, reply.Error
		case reply.Closed:
			return nil, sandbox.ErrClosed
		case reply.Failure != "":
			return nil, errors.New(reply.Failure)
		}
		value, err := unpackAs(op.Value, reply.Body)
		if err != nil {
			return nil, fmt.Errorf("file reply: %w", err)
		}
		return value, nil
	})
}
