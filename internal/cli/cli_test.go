package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// grammar is a command line with a flag of every kind that the commands use.
type grammar struct {
	cli.Common

	Go    goCommand    `cmd:"" help:"Go somewhere."`
	Hide  struct{}     `cmd:"" hidden:""`
	Stand standCommand `cmd:"" help:"Stand still."`
	Turn  struct {
		Speed string   `required:"" help:"Speed."`
		Left  struct{} `cmd:""`
		Right struct{} `cmd:""`
	} `cmd:""`
}

type goCommand struct {
	Where string            `arg:"" help:"Where to."`
	Nats  string            `required:"" placeholder:"URL" help:"Servers."`
	Creds string            `help:"File."`
	Env   map[string]string `mapsep:"none" sep:"none" help:"Environment."`
	Model []string          `sep:"none" help:"Models."`
	Only  []string          `placeholder:"NAME" narrows:"" help:"No others."`
	Slots int               `default:"4" help:"Slots."`
	Drain time.Duration     `default:"10s" help:"Drain."`
	JSON  bool              `help:"JSON."`
	Speed string            `default:"slow" enum:"slow,fast" help:"Speed: slow or fast."`
}

type standCommand struct {
	Long bool `help:"For long."`
}

// outcome is what a run of the command line left.
type outcome struct {
	code           int
	stdout, stderr string
	ran            []string
}

func run(t *testing.T, result error, args ...string) outcome {
	t.Helper()
	open := func(name string) *os.File {
		file, err := os.Create(filepath.Join(t.TempDir(), name))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, file.Close()) })
		return file
	}
	stdout, stderr := open("stdout"), open("stderr")
	var g grammar
	var o outcome
	o.code = cli.Run(cli.Program{Name: "tool", Version: "v1.2.3", Description: "Does things.", Args: args, Stdout: stdout, Stderr: stderr, Getenv: os.Getenv},
		&g, &g.Common, func(s cli.Selected) error {
			o.ran = append(o.ran, s.Name)
			return result
		})
	read := func(file *os.File) string {
		content, err := os.ReadFile(file.Name())
		require.NoError(t, err)
		return string(content)
	}
	o.stdout, o.stderr = read(stdout), read(stderr)
	return o
}

func TestRun_UsageErrorsNameWhatIsAllowed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"no command":       {nil, []string{"expected one of go, stand, turn"}},
		"unknown command":  {[]string{"fly"}, []string{"unexpected argument fly", "commands are go, stand, turn"}},
		"unknown verb":     {[]string{"turn", "over"}, []string{"unexpected argument over; commands are left, right"}},
		"unknown flag":     {[]string{"--bogus"}, []string{"tool: unknown flag --bogus; --help-all lists the flags\n"}},
		"flag of another":  {[]string{"stand", "--slots=1"}, []string{"tool: unknown flag --slots; --help-all lists the flags\n"}},
		"misspelt flag":    {[]string{"go", "home", "--nats=x", "--slot=1"}, []string{"tool: unknown flag --slot; did you mean --slots? --help-all lists the flags\n"}},
		"bad word":         {[]string{"go", "home", "--nats=x", "--speed=x"}, []string{`--speed must be one of "slow","fast"`}},
		"bad number":       {[]string{"go", "home", "--nats=x", "--slots=x"}, []string{"--slots: expected a valid 64 bit int", `"x"`}},
		"bad duration":     {[]string{"go", "home", "--nats=x", "--drain=x"}, []string{"--drain: expected duration", `"x"`, "as in 90s"}},
		"negative number":  {[]string{"go", "home", "--nats=x", "--slots", "-1"}, []string{`--slots: expected int value but got "-1"; perhaps try --slots="-1"`}},
		"missing verb":     {[]string{"turn"}, []string{"expected one of left, right"}},
		"bad pair":         {[]string{"go", "home", "--nats=x", "--env=A"}, []string{`--env: expected "<key>=<value>"`}},
		"empty value":      {[]string{"go", "home", "--nats="}, []string{"--nats: is empty; want URL, or leave it out"}},
		"empty list":       {[]string{"go", "home", "--nats=x", "--only", ""}, []string{"--only: has an empty value"}},
		"empty among two":  {[]string{"go", "home", "--nats=x", "--only=a", "--only="}, []string{"--only: has an empty value"}},
		"comma at the end": {[]string{"go", "home", "--nats=x", "--only=a,"}, []string{"--only: has an empty value: omit it, and any extra comma"}},
		"empty model":      {[]string{"go", "home", "--nats=x", "--model="}, []string{"--model: has an empty value"}},
		"bad log level":    {[]string{"--log-level=x", "stand"}, []string{`"debug","info","warn","error"`}},
		"missing flag":     {[]string{"go", "home"}, []string{"missing flags: --nats=URL"}},
		"missing argument": {[]string{"go", "--nats=x"}, []string{`expected "<where>"; usage: tool go --nats=URL <where> [flags]`}},
		"stray argument":   {[]string{"stand", "still"}, []string{"unexpected argument still", "usage: tool stand", `Run "tool stand --help" for usage.`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := run(t, nil, test.args...)
			require.Equal(t, cli.ExitUsage, o.code, o.stderr)
			require.Empty(t, o.ran)
			require.Empty(t, o.stdout)
			require.True(t, strings.HasPrefix(o.stderr, "tool: "), o.stderr)
			if strings.Contains(o.stderr, "unknown flag") {
				require.Equal(t, 1, strings.Count(o.stderr, "\n"), "a typo prints one line: %s", o.stderr)
			} else {
				require.Regexp(t, `Run "tool( stand| go| turn)? --help" for usage.`, o.stderr)
			}
			for _, want := range test.want {
				require.Contains(t, o.stderr, want)
			}
		})
	}
}

func TestRun_WithoutCommands(t *testing.T) {
	t.Parallel()
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer func() { require.NoError(t, stderr.Close()) }()
	var g struct {
		cli.Common

		Nats string `help:"Servers."`
	}
	code := cli.Run(cli.Program{Name: "tool", Args: []string{"fly"}, Stdout: stderr, Stderr: stderr, Getenv: os.Getenv},
		&g, &g.Common, func(cli.Selected) error { return nil })
	require.Equal(t, cli.ExitUsage, code)
	content, err := os.ReadFile(stderr.Name())
	require.NoError(t, err)
	require.Contains(t, string(content), "unexpected argument fly; usage: tool [flags]")
}

func TestRun_BadEnvironmentNamesTheFlag(t *testing.T) {
	t.Setenv("TOOLFLEET_SLOTS", "many")
	o := run(t, nil, "go", "home", "--nats=x")
	require.Equal(t, cli.ExitUsage, o.code)
	require.Contains(t, o.stderr, "--slots")
	require.Contains(t, o.stderr, "many")
}

// TestRun_AnEmptyVariableIsNoneButWhereThatAllowsMore.
func TestRun_AnEmptyVariableIsNoneButWhereThatAllowsMore(t *testing.T) {
	t.Setenv("TOOLFLEET_SLOTS", "")
	t.Setenv("TOOLFLEET_ONLY", "")
	require.Equal(t, []string{"stand"}, run(t, nil, "stand").ran, "which has no such flag")
	t.Setenv("TOOLFLEET_ONLY", "") // a run unsets it
	o := run(t, nil, "go", "home", "--nats=x")
	require.Equal(t, cli.ExitUsage, o.code)
	require.Empty(t, o.ran)
	require.Contains(t, o.stderr, "TOOLFLEET_ONLY: is empty, which would allow more tool calls; set NAME,..., or unset the variable")
	t.Setenv("TOOLFLEET_ONLY", "")
	require.Equal(t, cli.ExitOK, run(t, nil, "go", "home", "--nats=x", "--only=a").code, "the flag counts")
	t.Setenv("TOOLFLEET_ONLY", ",")
	require.Contains(t, run(t, nil, "go", "home", "--nats=x").stderr, "--only: has an empty value")
}

// memoryLimit is the limit of the heap, which every command sets.
func memoryLimit() string { return strconv.FormatInt(debug.SetMemoryLimit(-1), 10) }

func TestRun_EveryFlagIsAlsoAVariable(t *testing.T) { //nolint:paralleltest // changes the environment
	for name, value := range map[string]string{
		"TOOLFLEET_NATS": "nats://bob:s3cret@host:4222", "TOOLFLEET_SLOTS": "7", "TOOLFLEET_LOG_LEVEL": "debug",
		"TOOLFLEET_DRAIN": "1m", "TOOLFLEET_JSON": "true", "TOOLFLEET_SPEED": "fast", "TOOLFLEET_ENV": "KEY=s3cret",
	} {
		t.Setenv(name, value)
	}
	o := run(t, nil, "go", "home", "--speed=slow", "--print-config")
	require.Equal(t, cli.ExitOK, o.code, o.stderr)
	require.NotContains(t, o.stdout, "s3cret")
	require.JSONEq(t,
		`{"GOMEMLIMIT":`+memoryLimit()+`,"creds":"","drain":"1m0s","env":{"KEY":"(set)"},"json":true,"log-format":"text","log-level":"debug","model":null,"only":null,
		"nats":"nats://xxxxx@host:4222","slots":7,"speed":"slow"}`, o.stdout, "what is given as a flag counts")
}

func TestRun_PrintConfigShowsNoSecretAndRunsNothing(t *testing.T) {
	t.Parallel()
	o := run(t, errors.New("must not run"), "go", "home", "--nats=nats://s3cret@a:1,bob:s3cret@b:2", "--env=TOKEN=s3cret", "--env=A=",
		"--creds=/etc/nats.creds", "--model=a", "--model=b,c", "--print-config")
	require.Equal(t, cli.ExitOK, o.code, o.stderr)
	require.Empty(t, o.ran)
	require.Empty(t, o.stderr)
	require.NotContains(t, o.stdout, "s3cret")
	require.JSONEq(t,
		`{"GOMEMLIMIT":`+memoryLimit()+`,"creds":"/etc/nats.creds","drain":"10s","env":{"TOKEN":"(set)","A":"(set)"},"json":false,"log-format":"text","log-level":"warn",
		"model":["a","b,c"],"only":null,"nats":"nats://xxxxx@a:1,xxxxx@b:2","slots":4,"speed":"slow"}`, o.stdout)
}

func TestRun_HelpAndVersion(t *testing.T) {
	t.Parallel()
	o := run(t, nil, "--version")
	require.Equal(t, outcome{stdout: "tool v1.2.3\n"}, o)
	for _, args := range [][]string{{"--help"}, {"go", "--help"}, {"go", "-h"}} {
		o := run(t, nil, args...)
		require.Equal(t, cli.ExitOK, o.code)
		require.Empty(t, o.ran)
		require.Empty(t, o.stderr)
		require.NotContains(t, o.stdout, "TOOLFLEET_LOG_LEVEL")
	}
	all := run(t, nil, "go", "--help-all").stdout
	require.Contains(t, all, "$TOOLFLEET_LOG_LEVEL")
	require.Contains(t, all, "$TOOLFLEET_SLOTS")
}

func TestRun_AVariableDoesNotAskForTheVersion(t *testing.T) {
	t.Setenv("TOOLFLEET_VERSION", "v9")
	o := run(t, nil, "stand")
	require.Equal(t, []string{"stand"}, o.ran)
	require.Empty(t, o.stdout)
}

func TestRun_ExitCodes(t *testing.T) {
	t.Parallel()
	limit := &cli.ExitError{Code: cli.ExitLimit}
	for name, test := range map[string]struct {
		err    error
		code   int
		stderr string
	}{
		"nothing wrong":       {nil, 0, ""},
		"an error":            {errors.New("broken"), 1, "tool: broken\n"},
		"a signal":            {fmt.Errorf("measure: %w", context.Canceled), 130, "tool: interrupted\n"},
		"usage":               {cli.Usagef("--slots %d: must be 1 or more", 0), 2, "tool: --slots 0: must be 1 or more\nRun \"tool stand --help\" for usage.\n"},
		"a silent limit":      {limit, 3, ""},
		"interrupted":         {&cli.ExitError{Code: cli.ExitInterrupted, Message: "interrupted"}, 130, "tool: interrupted\n"},
		"wrapped":             {fmt.Errorf("start: %w", cli.Usagef("no")), 2, "tool: start: no\nRun \"tool stand --help\" for usage.\n"},
		"what others name":    {errors.New("no lane 'näme'; there is a\x1b[31mred\u202e"), 1, "tool: no lane 'näme'; there is a␛[31mred<U+202E>\n"},
		"joined with another": {errors.Join(limit, errors.New("and broken")), 3, "tool: \nand broken\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := run(t, test.err, "stand")
			require.Equal(t, outcome{code: test.code, stderr: test.stderr, ran: []string{"stand"}}, o)
		})
	}
}

func TestLogger_WritesFromItsLevel(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	logger := cli.Common{LogLevel: "info"}.Logger(cli.Program{Stderr: file})
	logger.DebugContext(t.Context(), "hidden")
	logger.InfoContext(t.Context(), "shown")
	content, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Contains(t, string(content), "shown")
	require.NotContains(t, string(content), "hidden")
}

func TestLogger_WritesJSON(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	logger := cli.Common{LogLevel: "warn", LogFormat: "json"}.Logger(cli.Program{Stderr: file})
	logger.WarnContext(t.Context(), "connection lost", slog.Any("error", io.EOF))
	content, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	var line struct{ Time, Level, Msg, Error string }
	require.NoError(t, json.Unmarshal(content, &line))
	require.NotEmpty(t, line.Time)
	line.Time = ""
	require.Equal(t, struct{ Time, Level, Msg, Error string }{Level: "WARN", Msg: "connection lost", Error: "EOF"}, line)
}

func TestStateDir(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	t.Setenv("XDG_STATE_HOME", "")
	dir, err := cli.StateDir("worker")
	require.NoError(t, err)
	require.Equal(t, "/home/me/.local/state/toolfleet/worker", dir)
	t.Setenv("XDG_STATE_HOME", "/state")
	dir, err = cli.StateDir(filepath.Join("sessions", "s"))
	require.NoError(t, err)
	require.Equal(t, "/state/toolfleet/sessions/s", dir)
	t.Setenv("XDG_STATE_HOME", "relative") // to be ignored, says its specification
	dir, err = cli.StateDir("worker")
	require.NoError(t, err)
	require.Equal(t, "/home/me/.local/state/toolfleet/worker", dir)
	t.Setenv("HOME", "here")
	_, err = cli.StateDir("worker")
	require.EqualError(t, err, `no directory for lasting files: the home directory (HOME) is "here", must be an absolute path; set it, or XDG_STATE_HOME`)
	t.Setenv("HOME", "")
	_, err = cli.StateDir("worker")
	require.Error(t, err)
}

func TestRun_ErrorsShowNoUsersOfURLs(t *testing.T) {
	t.Parallel()
	o := run(t,
		errors.New(`bodies "s3://key:s3cret@bucket/a@b?region=x": no; see http://s3cret@a,http://b:s3c@s3cret@c:1/d and https://e/@f`),
		"go", "home", "--nats=nats://x")
	require.Contains(t, o.stderr, `bodies "s3://xxxxx@bucket/a@b?region=x": no; see http://xxxxx@a,http://xxxxx@c:1/d and https://e/@f`)
}

func TestRedactURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://ann:pw@host/mcp?key=s3cret": "https://xxxxx@host/mcp?xxxxx",
		"https://token@host":                 "https://xxxxx@host",
		"https://host:1/a@b":                 "https://host:1/a@b",
		"https://host/a#s3cret":              "https://host/a#xxxxx",
		"openai:gpt-5":                       "openai:gpt-5",
	} {
		require.Equal(t, want, cli.RedactURL(text))
	}
	require.Equal(t, `Post "https://xxxxx@host/mcp?xxxxx": dial tcp: no, see http://other`,
		cli.RedactURLs(`Post "https://ann:pw@host/mcp?key=s3cret": dial tcp: no, see http://other`))
}

func TestProtect_ParsesOrNamesTheFault(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"": nil, "none": {}, " none ": {}, "a": {"a"}, "b, ./a/,b/c": {"a", "b"}, ".git/hooks,.git/config": {".git/config", ".git/hooks"},
	} {
		got, err := (&cli.Protect{Protect: text}).Places()
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for text, fault := range map[string]string{
		"/etc": `--protect: protected place "/etc": must be a path in the workspace`, "a,../b": `"../b"`,
		".": "is the workspace itself", "a,": "any extra comma", ",": "any extra comma", "a\x00": "NUL",
	} {
		_, err := (&cli.Protect{Protect: text}).Places()
		require.ErrorContains(t, err, fault)
	}
}

func TestProtects_NeedsADriverThatCan(t *testing.T) {
	t.Parallel()
	require.NoError(t, cli.Protects(nil, isolation.Caps{}))
	require.NoError(t, cli.Protects([]string{}, isolation.Caps{}))
	require.NoError(t, cli.Protects([]string{"a"}, isolation.Caps{Protect: true}))
	require.ErrorContains(t, cli.Protects([]string{"a"}, isolation.Caps{Driver: "landlock"}), "driver landlock cannot")
}

// TestRun_ErrorsNameTheVariableThatSetAFlag if they name the flag or its value, and only then.
func TestRun_ErrorsNameTheVariableThatSetAFlag(t *testing.T) {
	t.Setenv("TOOLFLEET_NATS", "nats://bob:s3cret@host:4222")
	t.Setenv("TOOLFLEET_SLOTS", "7")
	t.Setenv("TOOLFLEET_DRAIN", "-1s")
	for message, want := range map[string]string{
		"connect to NATS at nats://xxxxx@host:4222: refused": "refused (--nats is set by the variable TOOLFLEET_NATS)\n",
		"--nats: no":                         "--nats: no (--nats is set by the variable TOOLFLEET_NATS)\n",
		"--drain -1s and --slots 7: no":      "no (--slots is set by the variable TOOLFLEET_SLOTS, --drain is set by the variable TOOLFLEET_DRAIN)\n",
		"--drain-age, x--slots and 7":        "--drain-age, x--slots and 7\n",
		"TOOLFLEET_NATS is wrong for --nats": "is wrong for --nats\n",
	} {
		o := run(t, errors.New(message), "go", "home")
		require.Equal(t, cli.ExitFailed, o.code)
		require.Contains(t, o.stderr, want)
		require.NotContains(t, o.stderr, "s3cret")
	}
	o := run(t, fmt.Errorf("wrapped: %w", cli.Usagef("--slots 8: no")), "go", "home", "--slots=8")
	require.Equal(t, cli.ExitUsage, o.code)
	require.Contains(t, o.stderr, "--slots 8: no\n", "an argument has set it")

	t.Setenv("TOOLFLEET_SPEED", "sideways")
	o = run(t, nil, "go", "home")
	require.Equal(t, cli.ExitUsage, o.code)
	require.Contains(t, o.stderr, `--speed must be one of "slow","fast" but got "sideways" (--speed is set by the variable TOOLFLEET_SPEED)`)
	o = run(t, nil, "go", "home", "--slot=3")
	require.NotContains(t, o.stderr, "is set by", "the list of flags is about none of them")
}
