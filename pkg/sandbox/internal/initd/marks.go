//go:build linux

package initd

import (
	"fmt"
	"golang.org/x/sys/unix"
)

var marks string

func mark(n string) {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	marks += fmt.Sprintf("%s=%d;", n, ts.Nano()/1000)
}
func Mark(n string) { mark(n) }
func Marks() string { return marks }
