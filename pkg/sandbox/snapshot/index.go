package snapshot

import (
	"io/fs"
	"time"
)

// Index remembers the content of files by what they were like when it was read or written, so that
// those which have not changed since need not be read. It is of one directory; whoever loses it has
// every file read again, and nothing else.
type Index map[string]Known

// Known is what is remembered of a file.
type Known struct {
	Stamp

	// Content stands for the parts that it was read or written as.
	Content string `json:"content"`
}

// Stamp is what changes when a file is written to: its size, its times in nanoseconds since 1970,
// and its number in the file system. Where the system does not tell the time of a file's last
// change, nothing is remembered.
type Stamp struct {
	Size   int64  `json:"size"`
	Mod    int64  `json:"mod"`
	Change int64  `json:"change"`
	Inode  uint64 `json:"inode"`
}

// fresh is how long after its last change a file may be changed again without another time: as
// coarse as clocks of file systems are.
const fresh = 25 * time.Millisecond

// note remembers a file that was read, or written, as info tells. One that has changed a moment ago
// may change again and show nothing: it is forgotten.
func (x Index) note(name string, info fs.FileInfo, node Node, now time.Time) {
	stamp, ok := stampOf(info)
	if !ok || now.UnixNano()-stamp.Change < int64(fresh) {
		delete(x, name)
		return
	}
	x[name] = Known{Stamp: stamp, Content: node.content()}
}

// knows reports whether a file is as it was when it had the content of a node.
func (x Index) knows(name string, info fs.FileInfo, node Node) bool {
	known, is := x[name]
	stamp, ok := stampOf(info)
	return is && ok && known.Stamp == stamp && known.Content == node.content()
}
