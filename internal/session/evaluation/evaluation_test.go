package evaluation_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/session/evaluation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func budget(text string) (*protocol.Spending, error) {
	switch text {
	case "":
		return nil, nil //nolint:nilnil // none
	case "steps=3":
		return &protocol.Spending{Steps: 3}, nil
	default:
		return nil, errors.New("budget: " + text)
	}
}

func TestParse_CasesTakeWhatIsForAll(t *testing.T) {
	t.Parallel()
	cases, err := evaluation.Parse([]byte(`
model: a
budget: steps=3
cases:
  - {name: one, prompt: Do it., workspace: dir, checks: [{command: "true"}]}
  - {name: two, prompt: Say it., model: b, timeout: 1m, toolsets: [core, web], checks: [{text: it}, {command: "true"}]}
`), "/base", budget)
	require.NoError(t, err)
	require.Equal(t, []evaluation.Case{
		{
			Name: "one", Prompt: "Do it.", Workspace: filepath.Join("/base", "dir"), Model: "a", Budget: &protocol.Spending{Steps: 3},
			Timeout: evaluation.DefaultTimeout, Checks: []evaluation.Check{{Command: "true"}},
		},
		{
			Name: "two", Prompt: "Say it.", Model: "b", Toolsets: []string{"core", "web"}, Budget: &protocol.Spending{Steps: 3},
			Timeout: time.Minute, Checks: []evaluation.Check{{Text: "it"}, {Command: "true"}},
		},
	}, cases)
}

func TestParse_Example(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "..", "..", "examples", "eval")
	content, err := os.ReadFile(filepath.Join(dir, "cases.yaml"))
	require.NoError(t, err)
	cases, err := evaluation.Parse(content, dir, func(string) (*protocol.Spending, error) { return &protocol.Spending{}, nil })
	require.NoError(t, err)
	for _, c := range cases {
		require.DirExists(t, c.Workspace)
	}
}

func TestParse_BadInput(t *testing.T) {
	t.Parallel()
	for input, wants := range map[string][]string{
		"":                               {"cases: needs one case or more"},
		"cases: [{prompt: x}]":           {`case 1 "": name: missing`},
		"cases: [{nam: x}]":              {`line 1: there is no field "nam"; the fields are name, prompt, workspace, checks, model, toolsets, system, budget, timeout`},
		"cases: [{timeout: x}]\n---\n{}": {"line 1: `x` is not what belongs here: it must be a time such as 90s or 2m"},
		"cases: []\n---\n{}":             {"has more than one document"},
		"cases: [{name: a}]":             {`case 1 "a": prompt: missing`},
		"budget: steps=x\ncases: [{name: a, prompt: x, checks: [{text: a}]}]": {"budget: steps=x"},
		"cases: [{name: a, prompt: x}, {name: b, prompt: x, timeout: -1s, checks: [{text: a}]}]": {
			`case 1 "a": checks: needs one check or more`, `case 2 "b": timeout: -1s: must be positive`,
		},
		"cases: [{name: a, prompt: x, checks: [{}, {text: a, command: b}]}]": {
			"check 1: needs either command or text", "check 2: needs either command or text",
		},
		"cases: [{name: a, prompt: x, checks: [{text: a}]}, {name: a, prompt: x, checks: [{text: a}]}]": {`case 2 "a": name: another case has it`},
	} {
		_, err := evaluation.Parse([]byte(input), ".", budget)
		for _, want := range wants {
			require.ErrorContains(t, err, want, input)
		}
	}
}

func TestReports_HaveEveryState(t *testing.T) {
	t.Parallel()
	results := []evaluation.Result{
		{Name: "good", State: evaluation.Passed, SessionID: "s1", Text: "It <works>.", Seconds: 1, CostUSD: new(0.5)},
		{Name: "bad", State: evaluation.Failed, SessionID: "s2", Why: "check 1: make: exit code 2\n\x00output", Seconds: 0.25},
		{Name: "lost", State: evaluation.Error, SessionID: "s3", Why: "no fleet"},
	}
	var out bytes.Buffer
	require.NoError(t, evaluation.JUnit(&out, "cases.yaml", results))
	require.Equal(t, `<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="cases.yaml" tests="3" failures="1" errors="1" time="1.250">
  <testcase classname="cases.yaml" name="good" time="1.000">
    <system-out>session s1&#xA;It &lt;works&gt;.</system-out>
  </testcase>
  <testcase classname="cases.yaml" name="bad" time="0.250">
    <failure message="check 1: make: exit code 2">check 1: make: exit code 2&#xA;`+"\uFFFD"+`output</failure>
    <system-out>session s2&#xA;</system-out>
  </testcase>
  <testcase classname="cases.yaml" name="lost" time="0.000">
    <error message="no fleet">no fleet</error>
    <system-out>session s3&#xA;</system-out>
  </testcase>
</testsuite>
`, out.String())
	require.NoError(t, xml.Unmarshal(out.Bytes(), new(any)))

	out.Reset()
	require.NoError(t, evaluation.Table(&out, results))
	require.Contains(t, out.String(), "bad   failed  0      0       -        0.2s  s2       check 1: make: exit code 2\n")
}
