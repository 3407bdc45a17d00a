//go:build linux

package initd

import (
	"os"
	"strconv"
)

// When memory runs out the kernel kills somebody: it shall be a command, not the first process of a
// sandbox, and not the worker. A process may say that it is to be killed before others, and
// what it starts inherits that; so this one says so for the moment of a fork.

// commandScore is what a command has more than the first process, in thousandths of the memory
// there is.
const commandScore = 500

// scoreFile is where the first process has its own.
const scoreFile = "/proc/1/oom_score_adj"

// score is the file of this process's own score; nil when there is none. It has to be opened
// before this process is out of everybody's reach, its own too.
var score *os.File //nolint:gochecknoglobals // of the process

// openScore opens it.
func openScore() (err error) {
	score, err = os.OpenFile(scoreFile, os.O_RDWR, 0)
	return err
}

// raiseScore makes this process, and what it forks, one to be killed early, until restore is
// called.
func raiseScore() (restore func()) {
	var was [8]byte
	n, err := score.ReadAt(was[:], 0)
	if err != nil && n == 0 {
		return func() {}
	}
	now, _ := strconv.Atoi(string(was[:max(n-1, 0)])) // without the line's end
	if _, err := score.WriteAt(strconv.AppendInt(nil, int64(min(now+commandScore, 1000)), 10), 0); err != nil {
		return func() {}
	}
	return func() { _, _ = score.WriteAt(was[:n], 0) } // it is no less than it has been
}
