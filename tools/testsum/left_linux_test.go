package main

import (
	"strings"
	"testing"
	"time"
)

const passes = `echo '{"Action":"pass","Package":"p","Test":"TestOne"}'; echo '{"Action":"pass","Package":"p"}'; `

// TestRunCommand_LooksForWhatIsLeft is not parallel to anything: this process reaps every child.
func TestRunCommand_LooksForWhatIsLeft(t *testing.T) {
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
			passed, err := runCommand([]string{"sh", "-c", c.script}, &out, time.Second)
			if passed != c.passed || (err == nil) != (c.errs == "") || err != nil && !strings.Contains(err.Error(), c.errs) {
				t.Errorf("passed %t, error %v; want %t, %q", passed, err, c.passed, c.errs)
			}
			if !strings.Contains(out.String(), c.says) {
				t.Errorf("does not say %q:\n%s", c.says, out.String())
			}
			for deadline := time.Now().Add(time.Minute); !reap(); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("not killed: %v", descendants())
				}
			}
		})
	}
}
