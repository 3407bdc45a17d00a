package worker

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// languages is what code_run can run here.
type languages struct {
	shell   string // of bash commands: bash where there is one, else sh
	scripts map[string]string
	ripgrep bool // can help searches
}

// findLanguages looks for interpreters in a PATH. Each script takes the program
// text on stdin, keeps it in a file, and runs it with an empty stdin.
func findLanguages(path string) languages {
	found := languages{shell: "sh", scripts: map[string]string{}, ripgrep: onPath(path, "rg") && onPath(path, "xargs")}
	if onPath(path, "bash") {
		found.shell = "bash"
	}
	for _, candidate := range []struct{ language, program, file, run string }{
		{"python", "python3", "main.py", `python3 "$d/main.py"`},
		{"sh", "sh", "main.sh", `sh "$d/main.sh"`},
		{"node", "node", "main.mjs", `node "$d/main.mjs"`},
		{"go", "go", "main.go", `go run "$d/main.go"`},
	} {
		if onPath(path, candidate.program) {
			found.scripts[candidate.language] = `d=$(mktemp -d) && cat >"$d/` + candidate.file + `" && { ` + candidate.run +
				` </dev/null; s=$?; rm -rf "$d"; exit $s; }`
		}
	}
	return found
}

func onPath(path, program string) bool {
	return slices.ContainsFunc(filepath.SplitList(path), func(dir string) bool {
		info, err := os.Stat(filepath.Join(dir, program))
		return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	})
}

func (l languages) script(language string) (string, error) {
	if script, known := l.scripts[language]; known {
		return script, nil
	}
	return "", protocol.Errorf(protocol.CodeLanguage, "language %q cannot be run by this worker; it has: %s",
		language, strings.Join(slices.Sorted(maps.Keys(l.scripts)), ", "))
}
