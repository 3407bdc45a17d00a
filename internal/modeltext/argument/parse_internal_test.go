package argument

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each path of so long a name takes about a millisecond.
func TestParseArguments_ProblemsThatAreNotShownHaveNoPath(t *testing.T) {
	t.Parallel()
	_, problems := parseArguments(`{"` + strings.Repeat("n", 100_000) + `":{` + strings.Repeat(`"a":1,`, 20_000) + `"a":1}}`)
	require.Len(t, problems, 20_000)
	for i, problem := range problems {
		require.Equal(t, i < maxProblems, strings.HasPrefix(problem, "nnn"), i)
	}
}
