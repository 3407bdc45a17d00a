package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const passes = `echo '{"Action":"pass","Package":"p","Test":"TestOne"}'; echo '{"Action":"pass","Package":"p"}'; `

// TestRunCommands_LooksForWhatIsLeft is not parallel to anything: this process reaps every child.
func TestRunCommands_LooksForWhatIsLeft(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		passed bool
		says   string
		errs   string
	}{
		"nothing":                      {script: passes, passed: true, says: "PASS: 1 tests passed"},
		"what ends by itself":          {script: passes + "setsid sleep 0.2 &", passed: true, says: "PASS"},
		"a daemon":                     {script: passes + "(setsid sleep 1234 >/dev/null &)", says: ": sleep 1234", errs: "left 1 processes behind"},
		"a daemon that holds the pipe": {script: passes + "(setsid sleep 1234 &)", says: ": sleep 1234", errs: "left 1 processes behind"},
		"one that ignores signals":     {script: passes + `(setsid sh -c 'trap "" TERM HUP; while :; do sleep 1; done' >/dev/null &)`, says: "while :", errs: "behind"},
		"a command that fails":         {script: passes + "exit 3", says: "PASS", errs: "exit status 3"},
		"a command that is killed":     {script: passes + "kill -9 $$", says: "PASS", errs: "killed"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			passed, err := runCommands([][]string{{"sh", "-c", c.script}}, &out, time.Second, nil)
			if passed != c.passed || (err == nil) != (c.errs == "") || err != nil && !strings.Contains(err.Error(), c.errs) {
				t.Errorf("passed %t, error %v; want %t, %q", passed, err, c.passed, c.errs)
			}
			if !strings.Contains(out.String(), c.says) {
				t.Errorf("does not say %q:\n%s", c.says, out.String())
			}
			assertNothingLeft(t)
		})
	}
}

// TestRunCommands_AllAtOnce is not parallel, either.
func TestRunCommands_AllAtOnce(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	fails := `cat "` + fifo + `"; echo '{"Action":"output","Package":"p","Output":"oh\n"}'; echo '{"Action":"fail","Package":"p"}'; exit 1`
	var out strings.Builder
	passed, err := runCommands(split([]string{"sh", "-c", fails, "--", "sh", "-c", passes + `echo >"` + fifo + `"`}), &out, time.Second, nil)
	if passed || err != nil {
		t.Errorf("passed %t, error %v", passed, err)
	}
	for _, says := range []string{"oh\n", "FAIL: 1 tests passed, 0 failed, 0 skipped; 1 packages passed, 1 failed"} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("does not say %q:\n%s", says, out.String())
		}
	}
}

// TestRunCommands_Interrupted is not parallel, either.
func TestRunCommands_Interrupted(t *testing.T) {
	interrupts := make(chan os.Signal, 1)
	interrupts <- os.Interrupt
	script := `trap "" INT TERM; (setsid sleep 1234 &); sleep 1234`
	passed, err := runCommands([][]string{{"sh", "-c", script}, {"sleep", "1234"}}, new(strings.Builder), time.Minute, interrupts)
	if passed || err == nil || !strings.Contains(err.Error(), "stopped by signal interrupt") {
		t.Errorf("passed %t, error %v", passed, err)
	}
	assertNothingLeft(t)
}

func assertNothingLeft(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !reap(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not killed: %v", descendants())
		}
	}
}
