package kinds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// languages is what a sandbox of this worker has.
type languages struct {
	shell   string            // of bash commands: bash where there is one, else sh
	scripts map[string]string // of code_run, by language
}

// interpreters says how each language is run: by which program, with its text in which file.
var interpreters = []struct{ language, program, file, run string }{ //nolint:gochecknoglobals // a constant table
	{"python", "python3", "main.py", `python3 "$d/main.py"`},
	{"sh", "sh", "main.sh", `sh "$d/main.sh"`},
	{"node", "node", "main.mjs", `node "$d/main.mjs"`},
	{"go", "go", "main.go", `go run "$d/main.go"`},
}

// languagesOf makes languages of the programs that there are. Each script takes the
// program text on stdin, keeps it in a file, and runs it with an empty stdin.
func languagesOf(has func(program string) bool) languages {
	found := languages{shell: "sh", scripts: map[string]string{}}
	if has("bash") {
		found.shell = "bash"
	}
	for _, i := range interpreters {
		if has(i.program) {
			found.scripts[i.language] = `d=$(mktemp -d) && cat >"$d/` + i.file + `" && { ` + i.run +
				` </dev/null; s=$?; rm -rf "$d"; exit $s; }`
		}
	}
	return found
}

// probeTimeout bounds the look into a sandbox.
const probeTimeout = 30 * time.Second

// probeScript prints the programs of its arguments that the sandbox has.
const probeScript = `for p do command -v "$p" >/dev/null 2>&1 && echo "$p"; done; exit 0`

// findLanguages looks for programs where commands run: in a sandbox, in a directory of data.
func findLanguages(ctx context.Context, driver isolation.Driver, spec isolation.Spec, data string) (_ languages, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(data, "probe-")
	if err != nil {
		return languages{}, fmt.Errorf("look for languages: %w", err)
	}
	spec.ID, spec.Workspace, spec.Scratch = probeID, filepath.Join(dir, "workspace"), filepath.Join(dir, "scratch")
	if err := errors.Join(os.Mkdir(spec.Workspace, 0o700), os.Mkdir(spec.Scratch, 0o700)); err != nil {
		return languages{}, fmt.Errorf("look for languages: %w", err)
	}
	box, err := driver.Open(ctx, spec)
	if err != nil {
		return languages{}, errors.Join(fmt.Errorf("look for languages: %w", err), sandboxes.RemoveUnmounted(dir))
	}
	defer func() {
		if closeErr := box.Close(); closeErr != nil { // what processes are left in is not removed below them
			err = errors.Join(err, closeErr)
			return
		}
		err = errors.Join(err, sandboxes.RemoveUnmounted(dir))
	}()
	programs := []string{"bash"}
	for _, i := range interpreters {
		programs = append(programs, i.program)
	}
	r, err := box.Exec(ctx, sandbox.Cmd{Argv: append([]string{"sh", "-c", probeScript, "sh"}, programs...)})
	if err == nil && (r.Reason != sandbox.ReasonExited || r.ExitCode != 0) {
		err = fmt.Errorf("%s, exit code %d: %s", r.Reason, r.ExitCode, r.Stderr.Data)
	}
	if err != nil {
		return languages{}, fmt.Errorf("look for languages: %w", err)
	}
	found := strings.Fields(string(r.Stdout.Data))
	return languagesOf(func(program string) bool { return slices.Contains(found, program) }), nil
}

// probeID is the id of the sandbox in which languages are looked for.
const probeID = "probe"

// names returns the languages, sorted.
func (l languages) names() []string { return slices.Sorted(maps.Keys(l.scripts)) }

func (l languages) script(language string) (string, error) {
	if script, known := l.scripts[language]; known {
		return script, nil
	}
	return "", protocol.Errorf(codes.Language, "language %q cannot be run by this worker; it has: %s",
		language, strings.Join(l.names(), ", "))
}
