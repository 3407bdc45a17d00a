//go:build linux

package wire

import (
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// What is said while a sandbox starts.
const (
	// KindConfig is a Config: the first message to each stage of a sandbox, and to the launcher
	// with the sandbox's end of the control socket. The launcher answers by KindLaunched or KindFailed.
	KindConfig   Kind = iota + 1
	KindLaunched      // Launched
	KindReady         // Ready, of the sandbox
	KindFailed        // Failed, of either
	KindListener      // a descriptor: a listener on the sandbox's loopback
	KindAborted       // of a sandbox that is no program yet: AbortedHead, and what calls.Failed reads
)

// AbortedHead is the start of a message of KindAborted, which is of one frame.
func AbortedHead() []byte {
	head := make([]byte, headerSize)
	head[8] = byte(KindAborted)
	return head
}

// What a worker asks. Answers have the id and the kind of their requests.
const (
	KindExec    Kind = iota + 16 // Exec; descriptors: input, output, errors; answered by Ended
	KindSignal                   // Signal; not answered
	KindKillAll                  // answered by Answer, once no command is left
	KindFiles                    // sandbox.FileRequest, answered by sandbox.FileReply; both packed
)

// Launched tells the process id of the sandbox's init, which is a child of the worker.
type Launched struct {
	PID int `json:"pid"`
}

// Failed says at which step the start of a sandbox has failed.
type Failed struct {
	Step  string `json:"step"`
	Error string `json:"error"`
	Errno int    `json:"errno"`
}

// Ready says that a sandbox has tested itself and serves.
type Ready struct {
	Landlock int `json:"landlock"` // ABI; 0 when the kernel has none
}

// Exec is a command. Argv and Env were checked. What need not be text is bytes.
type Exec struct {
	Argv     [][]byte `json:"argv"`
	Env      [][]byte `json:"env"`
	Path     []byte   `json:"path"` // PATH
	Dir      []byte   `json:"dir"`
	ReadOnly bool     `json:"read_only"`
	Limits   Limits   `json:"limits"`
}

// Bytes returns strings as bytes.
func Bytes(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

// Strings is the inverse of Bytes.
func Strings(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

// Limits bound a command; 0 is none. The kernel enforces them for each process, but for
// memory and disk, which the first process watches for all of the command and for all of
// the sandbox.
type Limits struct {
	CPU       uint64 `json:"cpu"` // seconds
	Memory    uint64 `json:"memory"`
	OpenFiles uint64 `json:"open_files"`
	FileSize  uint64 `json:"file_size"`
	Disk      uint64 `json:"disk"`
}

// Signal goes to a command and everything that it started.
type Signal struct {
	Command uint64 `json:"command"`
	Kill    bool   `json:"kill"` // SIGKILL; else SIGTERM
}

// Fault is a sandbox.Fault.
type Fault struct {
	Code    sandbox.FaultCode `json:"code"`
	Message string            `json:"message"`
}

// Answer is what came of a request.
type Answer[T any] struct {
	Fault *Fault `json:"fault,omitempty"`
	Error string `json:"error,omitempty"` // of the sandbox, not of the caller
	Value T      `json:"value"`
}

// Ended is how a command ended. Everything it started is dead, unless Left is set.
type Ended struct {
	Status uint32        `json:"status"` // as wait(2) has it
	CPU    time.Duration `json:"cpu"`
	MaxRSS int64         `json:"max_rss"` // bytes
	// Left says that something of the command could not be killed.
	Left bool `json:"left"`
	// Over is why the first process has killed the command; "" when it has not.
	Over sandbox.Reason `json:"over"`
}

// Config is what a sandbox is made of. It is read before there is a sandbox.
type Config struct {
	// Workspace, Home and Temp are host directories.
	Workspace string          `json:"workspace"`
	Home      string          `json:"home"`
	Temp      string          `json:"temp"`
	Mounts    []sandbox.Mount `json:"mounts"`
	// Bwrap has bubblewrap make the namespaces and the mounts.
	Bwrap bool `json:"bwrap"`
	// Privileged says that the worker is root: directories and mounts are opened with its rights.
	Privileged bool `json:"privileged"`
	// HostUID and HostGID are whom the sandbox's user is on the host. If Privileged, that is somebody
	// new, whom the launcher chooses, and in the sandbox files of the owner of the directories, OwnerUID
	// and OwnerGID, are that user's.
	HostUID  int `json:"host_uid"`
	HostGID  int `json:"host_gid"`
	OwnerUID int `json:"owner_uid"`
	OwnerGID int `json:"owner_gid"`

	Network   sandbox.NetworkMode `json:"network"`
	Processes uint64              `json:"processes"`
	Shm       int64               `json:"shm"` // bytes of shared memory
	Landlock  bool                `json:"landlock"`

	// Namespaces are the worker's, by their names in /proc/self/ns: none of them may be the
	// sandbox's, but for the network when it has the whole of it.
	Namespaces map[string]string `json:"namespaces"`
}
