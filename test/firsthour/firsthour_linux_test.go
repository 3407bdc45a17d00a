package firsthour

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProjects has a model work on each project, in place and over a fleet, or in one of the two
// ways by turns.
func TestProjects(t *testing.T) {
	t.Parallel()
	projects, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, projects)
	ways := []string{"in place", "over a fleet"}
	for n, path := range projects {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			p := readProject(t, path)
			p.available(t)
			p.flags = slices.Concat(p.flags, reach(t, p.net), serveIndex(t, p.index))
			for _, where := range ways {
				asUsers(t, where, func(t *testing.T, uid int) {
					t.Helper()
					if os.Getenv("TOOLFLEET_FIRSTHOUR") != "all" && (where != cmp.Or(p.only, ways[n%2]) || os.Geteuid() == 0 && (where == "in place") == (uid == 0)) {
						t.Skip("as an ordinary user in place, or as root over a fleet, is enough: make firsthour runs it every way")
					}
					worked(t, p, newPerson(t, uid), where == "in place")
				})
			}
		})
	}
}

// asUsers runs a test as the user that runs the tests, and as an ordinary one if that is root.
func asUsers(t *testing.T, where string, test func(t *testing.T, uid int)) {
	t.Helper()
	users := []int{os.Geteuid()}
	if users[0] == 0 {
		users = append(users, 65534)
	}
	for _, uid := range users {
		t.Run(where+" as "+strconv.Itoa(uid), func(t *testing.T) {
			t.Parallel()
			test(t, uid)
		})
	}
}

// worked lays the project out, has the model work on it, and checks what came of it.
func worked(t *testing.T, p project, who person, here bool) {
	t.Helper()
	p.layOut(t, who)
	model := p.model(t, filepath.Dir(who.home))
	who.own(t)
	for _, line := range p.outside {
		who.shell(t, line)
	}
	work := overAFleet
	if here {
		work = inPlace
	}
	p.check(t, work(t, p, who, model), here)
	for _, line := range p.after {
		who.shell(t, line)
	}
	for _, line := range p.here {
		if here {
			who.shell(t, line)
		}
	}
}

// inPlace is coordinator run in the workspace itself.
func inPlace(t *testing.T, p project, who person, model string) string {
	t.Helper()
	args := append([]string{"run", "--json", "--session", session, "--model", model, "--min-level", "full", "--workspace", who.workspace}, p.flags...)
	stdout, _ := who.coordinator(t, append(args, "do it")...)
	return stdout
}

// overAFleet is a coordinator that serves, a worker, and a copy of the workspace.
func overAFleet(t *testing.T, p project, who person, model string) string {
	t.Helper()
	data := filepath.Join(who.home, "fleet")
	server := who.start(t, "coordinator", "serve", "--model", model, "--listen", "127.0.0.1:0", "--data", filepath.Join(data, "serve"))
	fleet := server.wait(t, server.said, `worker (--nats) (nats://127\.0\.0\.1:\d+) (--creds) (\S+) --call-keys`)[1:]
	worker := who.start(t, "worker", slices.Concat(fleet, p.flags, []string{"--data", filepath.Join(data, "worker")})...)
	worker.wait(t, worker.said, `takes calls of pool default`)
	args := append([]string{"submit", "--json", "--session", session, "--min-level", "full", "--workspace", who.workspace}, fleet...)
	stdout, _ := who.coordinator(t, append(args, "do it")...)
	return stdout
}
