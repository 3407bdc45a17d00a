package evaluation

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

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
