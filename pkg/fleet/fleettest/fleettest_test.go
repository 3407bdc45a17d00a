package fleettest_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/fleettest"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type person struct {
	Name string `json:"name"`
}

func greet(_ context.Context, _ *worker.Call, p person) (string, error) {
	return "hello " + p.Name, nil
}

func TestStart_RunsHandlersAndCommands(t *testing.T) {
	t.Parallel()
	client := fleettest.Start(t, worker.Handle("greet", greet))
	table, err := tools.NewTable(tools.NewRemote[person]("greet", "Greet.", tools.Remote{Kind: "greet", Resources: []tools.Resource{}}))
	require.NoError(t, err)
	result, err := client.Call(t.Context(), fleet.Call{Table: table, Tool: "greet", Arguments: `{"name": "Ada"}`})
	require.NoError(t, err)
	require.Equal(t, "hello Ada", result.Text)
	result, err = client.Call(t.Context(), fleet.Call{Tool: "bash", Arguments: `{"command": "echo here"}`})
	require.NoError(t, err)
	require.Contains(t, result.Text, "here")
}

// logged is a test whose log is read.
type logged struct {
	*testing.T

	log strings.Builder
}

func (l *logged) Output() io.Writer { return &l.log }

// failed is the end of a test that fails.
type failed struct{ message string }

func (l *logged) Fatalf(format string, args ...any) { panic(failed{fmt.Sprintf(format, args...)}) }

// withoutIsolation says that in this process no driver isolates.
const withoutIsolation = "TOOLFLEET_TEST_WITHOUT_ISOLATION"

// On a host where nothing isolates, commands run all the same, and the log says so.
func TestStart_SaysThatNothingIsolates(t *testing.T) {
	t.Parallel()
	if os.Getenv(withoutIsolation) == "" {
		script := `echo 0 >/proc/sys/user/max_user_namespaces && exec "$0" "$@"`
		cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "sh", "-c", script, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), withoutIsolation+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), t.Name()) {
			t.Skipf("NOT TESTED: a user namespace without further ones is needed: %v: %s", err, out)
		}
		require.NoError(t, err, "%s", out)
		return
	}
	l := &logged{T: t}
	client := fleettest.Start(l)
	require.Contains(t, l.log.String(), "NOTHING ISOLATES COMMANDS")
	result, err := client.Call(t.Context(), fleet.Call{Tool: "bash", Arguments: `{"command": "echo here"}`})
	require.NoError(t, err)
	require.Contains(t, result.Text, "here")
}

func TestStart_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	require.PanicsWithValue(t, failed{`fleettest: start a worker: handler of greet: there are two`}, func() {
		fleettest.Start(&logged{T: t}, worker.Handle("greet", greet), worker.Handle("greet", greet))
	})
}
