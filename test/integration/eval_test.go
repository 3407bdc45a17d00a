package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEval_CasesRunOnTheFleet: each case has its own copy of the workspace, and its checks see what
// the agent did there. The exit code and the XML file report what has not passed.
func TestEval_CasesRunOnTheFleet(t *testing.T) {
	t.Parallel()
	model := script(t, say("Changing.", bash("c1", "echo new > made.txt")), say("All changed."))
	b := newBroker(t)
	startServe(t, model, b.flags...)
	startWorkers(t, 1, b.flags)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "project"), 0o700))
	write(t, filepath.Join(dir, "project", "there.txt"), "before\n")
	write(t, filepath.Join(dir, "good.yaml"), `cases:
  - {name: changes, prompt: do it, workspace: project, checks: [{command: cat made.txt there.txt}, {text: All changed}]}
  - {name: says, prompt: do it, checks: [{text: All changed}]}
`)
	good := b.session(t, "eval", "--json", filepath.Join(dir, "good.yaml"))
	require.Equal(t, 0, good.code, good)
	var results []struct {
		Name, State string
		Steps       int
	}
	require.NoError(t, json.Unmarshal([]byte(good.stdout), &results))
	require.Len(t, results, 2)
	require.Equal(t, "changes passed 2", results[0].Name+" "+results[0].State+" "+string(rune('0'+results[0].Steps)))
	require.NoFileExists(t, filepath.Join(dir, "project", "made.txt"))

	write(t, filepath.Join(dir, "bad.yaml"), `cases:
  - {name: changes, prompt: do it, workspace: project, checks: [{command: cat made.txt}]}
  - {name: wrong, prompt: do it, workspace: project, checks: [{command: "cat missing.txt"}, {text: nothing}]}
  - {name: too long, prompt: do it, budget: steps=1, checks: [{text: All changed}]}
`)
	xml := filepath.Join(dir, "results.xml")
	bad := b.session(t, "eval", "--junit", xml, filepath.Join(dir, "bad.yaml"))
	require.Equal(t, 1, bad.code, bad)
	require.Regexp(t, `changes\s+passed`, bad.stdout)
	require.Regexp(t, `wrong\s+failed .*check 1: cat missing.txt: exit code 1`, bad.stdout)
	require.Regexp(t, `too long\s+failed .*the turn ended as limit_reached`, bad.stdout)
	require.Contains(t, bad.stderr, "2 of 3 cases have not passed")
	content, err := os.ReadFile(xml)
	require.NoError(t, err)
	require.Contains(t, string(content), `tests="3" failures="2" errors="0"`)
	require.Contains(t, string(content), `No such file`)

	write(t, filepath.Join(dir, "nobody.yaml"), "cases: [{name: unserved, prompt: do it, model: 'script:other.json', checks: [{text: x}]}]\n")
	unserved := b.session(t, "eval", filepath.Join(dir, "nobody.yaml"))
	require.Equal(t, 1, unserved.code, unserved)
	require.Regexp(t, `unserved\s+error .*no coordinator serves`, unserved.stdout)

	unknown := b.session(t, "eval", filepath.Join(dir, "missing.yaml"))
	require.Equal(t, 2, unknown.code, unknown)
}
