package processtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/natsio/shared"
)

// EndServer kills the server in the background that commands have started whose user has a state
// directory (~/.local/state), and returns when it is gone: then the directory can be removed.
func EndServer(state string) {
	content, err := os.ReadFile(filepath.Join(state, "toolfleet", "local", "server.json"))
	var server struct {
		PID int `json:"pid"`
	}
	if err != nil || json.Unmarshal(content, &server) != nil || !serves(server.PID, state) {
		return
	}
	if process, err := os.FindProcess(server.PID); err == nil {
		_ = process.Kill() // it may be gone
	}
	for began := time.Now(); serves(server.PID, state) && time.Since(began) < time.Minute; {
		time.Sleep(time.Millisecond)
	}
}

// serves reports whether a process is the server of a state directory.
func serves(pid int, state string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(line), state)
}

// Idle is how long the servers of tests stay without a client. Programs that this process starts
// get it, unless they are given an environment of their own.
const Idle = "10s"

func init() { //nolint:gochecknoinits // for each test that starts a program
	if os.Getenv(shared.IdleVariable) == "" { // a program of a test may have been given another time
		_ = os.Setenv(shared.IdleVariable, Idle)
	}
}

// leftTime is how long a process of a test may be left: a server notices that its directory is
// gone.
const leftTime = 30 * time.Second

// Left returns the command lines of processes that run a program in a directory, or the program
// itself, except for this process. It waits for them for a while.
func Left(program string) (lines []string) {
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		lines = nil
		all, _ := filepath.Glob("/proc/[0-9]*") // none on other systems
		for _, dir := range all {
			path, err := os.Readlink(filepath.Join(dir, "exe"))
			path = strings.TrimSuffix(path, " (deleted)")
			if err != nil || filepath.Base(dir) == fmt.Sprint(os.Getpid()) || path != program && filepath.Dir(path) != program {
				continue
			}
			line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			lines = append(lines, strings.ReplaceAll(string(line), "\x00", " "))
		}
		if len(lines) == 0 || time.Since(began) > leftTime {
			return lines
		}
	}
}
