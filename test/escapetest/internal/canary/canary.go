// Package canary is what the escape suite and its probe tell each other: what was put
// on the host to be reached, and whether it was.
package canary

// File is the file in the workspace that describes the host to the probe.
const File = "canaries.json"

// Shared is a program of the host that every sandbox sees. It is locked outside, in part, and
// opened again and again.
const Shared = "/usr/bin/env"

// ReadOnlyDir is the directory of the workspace that is tried to be changed by commands that
// may only read, and ReadOnlySocket the abstract socket of one that may write.
const (
	ReadOnlyDir    = "read-only"
	ReadOnlySocket = "toolfleet-read-only-writer"
)

// Host is everything on the host that a sandbox must not reach.
type Host struct {
	// Secret is in the files, in the environment of the worker, and behind the sockets.
	Secret string `json:"secret"`
	// Dir has the files public (0644), private (0600), victim (to be changed), and the
	// socket socket (0777). TmpFile and ShmFile are in the host's /tmp and /dev/shm, "" where
	// it has no such directory.
	Dir string `json:"dir"`
	// Name is a part of the path of everything that the suite has on the host, workspaces included.
	Name    string `json:"name"`
	TmpFile string `json:"tmp_file"`
	ShmFile string `json:"shm_file"`
	// Abstract is the name of an abstract socket; TCP, TCP6 and UDP are host:port.
	Abstract string `json:"abstract"`
	TCP      string `json:"tcp"`
	TCP6     string `json:"tcp6"`
	UDP      string `json:"udp"`
	// ShmID, MsgID and SemID are of System V; Queue is a POSIX message queue. -1 and "" is none.
	ShmID int    `json:"shm_id"`
	MsgID int    `json:"msg_id"`
	SemID int    `json:"sem_id"`
	Queue string `json:"queue"`
	// Worker is a process with the secret in its environment, at Address in its memory, in the file
	// that is its descriptor FD, and with Marker in its command line. Self is the suite's own
	// process.
	Worker  int     `json:"worker"`
	Address uintptr `json:"address"`
	FD      int     `json:"fd"`
	Marker  string  `json:"marker"`
	Self    int     `json:"self"`
	// Hostname is the host's name.
	Hostname string `json:"hostname"`
	// Isolated says that the sandbox has a file system and processes of its own, so that
	// paths and names of the host in it are leaks.
	Isolated bool `json:"isolated"`
	// Neighbour is what another sandbox has: an abstract socket, a file in /tmp and a process with
	// a marker.
	Neighbour Neighbour `json:"neighbour"`
}

// Neighbour is what another sandbox has.
type Neighbour struct {
	Abstract string `json:"abstract"`
	TmpFile  string `json:"tmp_file"`
	Marker   string `json:"marker"`
}

// Outcome is what a probe found.
type Outcome string

// The outcomes.
const (
	// Contained is that nothing was reached.
	Contained Outcome = "contained"
	// Escape is that something outside was reached or changed, or that a layer is missing.
	Escape Outcome = "escape"
	// Leak is that something about the outside was learnt.
	Leak Outcome = "leak"
	// Works is that what every sandbox must allow is possible.
	Works Outcome = "works"
	// Broken is that it is not.
	Broken Outcome = "broken"
	// Refused is that the kernel ended the probe with a signal for what it tried. It contains the
	// probe in a sandbox; without one it is the host that refuses.
	Refused Outcome = "refused"
	// Unsupported is that this host lacks what the probe is about.
	Unsupported Outcome = "unsupported"
)

// Verdict is the answer of a probe.
type Verdict struct {
	Outcome Outcome `json:"outcome"`
	// Detail is the errno, or what was reached.
	Detail string `json:"detail"`
}
