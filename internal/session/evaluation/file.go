// Package evaluation runs an agent on cases, and checks what came of each.
//
//	FILE ──Parse──► cases ──Run──► a session of the fleet for each: workspace ► turn ► checks
//	                                                   │
//	                              results ◄────────────┘ ──► table, JSON, JUnit XML
//
// A case passes when its turn is answered and all of its checks pass. It fails when that is not so,
// and has an error when nothing can be said: a workspace cannot be copied, or the fleet is lost.
package evaluation

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Case is one task for an agent.
type Case struct {
	Name      string
	Prompt    string
	Workspace string // absolute path of a directory that is copied; "" is an empty workspace
	Model     string // "" is the default of the coordinator that runs it
	Toolsets  []string
	System    string
	Budget    *protocol.Spending // nil is none
	Timeout   time.Duration
	Checks    []Check
}

// Check is a condition on what came of a case; one field is set.
type Check struct {
	Command string `yaml:"command"` // exits with 0 in the workspace
	Text    string `yaml:"text"`    // is part of the answer
}

// settings are those of a file for all cases, and of a case.
type settings struct {
	Model    string        `yaml:"model"`
	Toolsets []string      `yaml:"toolsets"`
	System   string        `yaml:"system"`
	Budget   string        `yaml:"budget"`
	Timeout  time.Duration `yaml:"timeout"`
}

type fileCase struct {
	Name      string  `yaml:"name"`
	Prompt    string  `yaml:"prompt"`
	Workspace string  `yaml:"workspace"`
	Checks    []Check `yaml:"checks"`
	settings  `yaml:",inline"`
}

// DefaultTimeout bounds the turn of a case that names no timeout, and each of its checks.
const DefaultTimeout = 10 * time.Minute

// Parse reads a file of cases, in YAML or JSON. Paths are relative to dir; budget reads a budget.
// The error has all errors of the file.
func Parse(content []byte, dir string, budget func(string) (*protocol.Spending, error)) ([]Case, error) {
	var file struct {
		Cases    []fileCase `yaml:"cases"`
		settings `yaml:",inline"`
	}
	var errs []error
	for _, err := range yamlfile.Decode(content, &file) {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if len(file.Cases) == 0 {
		return nil, errors.New("cases: needs one case or more, each with name, prompt and checks")
	}
	cases, names := make([]Case, len(file.Cases)), map[string]bool{}
	for i := range file.Cases {
		c, err := file.Cases[i].read(&file.settings, dir, budget)
		if err == nil && names[c.Name] {
			err = errors.New("name: another case has it")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("case %d %q: %w", i+1, file.Cases[i].Name, err))
		}
		cases[i], names[c.Name] = c, true
	}
	return cases, errors.Join(errs...)
}

// read checks a case, and fills in what all cases of the file have.
func (f *fileCase) read(all *settings, dir string, budget func(string) (*protocol.Spending, error)) (Case, error) {
	c := Case{Name: f.Name, Prompt: strings.TrimSpace(f.Prompt), Checks: f.Checks, Model: f.Model, Toolsets: f.Toolsets, System: f.System, Timeout: f.Timeout}
	if c.Model == "" {
		c.Model = all.Model
	}
	if c.Toolsets == nil {
		c.Toolsets = all.Toolsets
	}
	if c.System == "" {
		c.System = all.System
	}
	for _, timeout := range []time.Duration{all.Timeout, DefaultTimeout} {
		if c.Timeout == 0 {
			c.Timeout = timeout
		}
	}
	if f.Budget == "" {
		f.Budget = all.Budget
	}
	var errs []error
	var err error
	if c.Budget, err = budget(f.Budget); err != nil {
		errs = append(errs, err)
	}
	switch {
	case c.Name == "":
		errs = append(errs, errors.New("name: missing"))
	case c.Prompt == "":
		errs = append(errs, errors.New("prompt: missing"))
	case c.Timeout < 0:
		errs = append(errs, fmt.Errorf("timeout: %s: must be positive", c.Timeout))
	case len(c.Checks) == 0:
		errs = append(errs, errors.New("checks: needs one check or more, each with command or text"))
	}
	for i, check := range c.Checks {
		if (check.Command == "") == (check.Text == "") {
			errs = append(errs, fmt.Errorf("check %d: needs either command or text", i+1))
		}
	}
	if f.Workspace != "" {
		c.Workspace = f.Workspace
		if !filepath.IsAbs(c.Workspace) {
			c.Workspace = filepath.Join(dir, c.Workspace)
		}
	}
	return c, errors.Join(errs...)
}

// Count returns how many results have a state.
func Count(results []Result, state State) int {
	n := 0
	for i := range results {
		if results[i].State == state {
			n++
		}
	}
	return n
}

// Table writes results as a table.
func Table(w io.Writer, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "CASE\tSTATE\tSTEPS\tTOKENS\tCOST\tTIME\tSESSION\tWHY") // Flush reports errors
	for i := range results {
		r := &results[i]
		cost := "-"
		if r.CostUSD != nil {
			cost = fmt.Sprintf("$%.4f", *r.CostUSD)
		}
		why, _, _ := strings.Cut(r.Why, "\n")
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%.1fs\t%s\t%s\n", r.Name, r.State, r.Steps, r.Usage.Total(), cost, r.Seconds, r.SessionID, why)
	}
	return table.Flush()
}

type testSuite struct {
	XMLName  xml.Name   `xml:"testsuite"`
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Errors   int        `xml:"errors,attr"`
	Seconds  string     `xml:"time,attr"`
	Cases    []testCase `xml:"testcase"`
}

type testCase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Seconds string   `xml:"time,attr"`
	Failure *problem `xml:"failure"`
	Error   *problem `xml:"error"`
	Output  string   `xml:"system-out"`
}

type problem struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// JUnit writes results as the XML that CI systems read: one suite with a test for each case.
func JUnit(w io.Writer, suite string, results []Result) error {
	out := testSuite{Name: suite, Tests: len(results), Failures: Count(results, Failed), Errors: Count(results, Error)}
	total := 0.0
	for i := range results {
		r := &results[i]
		total += r.Seconds
		test := testCase{Class: suite, Name: r.Name, Seconds: fmt.Sprintf("%.3f", r.Seconds), Output: fmt.Sprintf("session %s\n%s", r.SessionID, r.Text)}
		first, _, _ := strings.Cut(r.Why, "\n")
		switch r.State {
		case Failed:
			test.Failure = &problem{first, r.Why}
		case Error:
			test.Error = &problem{first, r.Why}
		case Passed:
		}
		out.Cases = append(out.Cases, test)
	}
	out.Seconds = fmt.Sprintf("%.3f", total)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(out); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
