package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

// The steps of a budget replace the default bound of a turn, and no bound that was given.
func TestTurnFlags_StepsOfABudget(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		steps  int
		budget string
		want   int
	}{{64, "steps=200", 200}, {64, "usd=5", 64}, {64, "", 64}, {5, "steps=200", 5}, {64, "steps=10", 64}} {
		f := turnFlags{Prompt: "go", boundFlags: boundFlags{MaxSteps: test.steps, Budget: test.budget}, workspaceFlags: workspaceFlags{WholeHome: true}}
		_, err := f.check("s", nil)
		require.NoError(t, err)
		require.Equal(t, test.want, f.MaxSteps, test)
	}
}

// Each session is listed once, right below its parent if that is listed.
func TestEachBelow_KeepsEachSession(t *testing.T) {
	t.Parallel()
	list := []report.Session{
		{SessionID: "child", Parent: "a"},
		{SessionID: "b"},
		{SessionID: "a"},
		{SessionID: "grandchild", Parent: "child"},
		{SessionID: "stray", Parent: "removed"},
		{SessionID: "other", Parent: "a"},
	}
	var got []string
	eachBelow(list, func(s *report.Session, depth int) { got = append(got, fmt.Sprint(depth, " ", s.SessionID)) })
	require.Equal(t, []string{"0 b", "0 a", "1 child", "2 grandchild", "1 other", "0 stray"}, got)
}
