package environment

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
)

// TestAccess_IsTold: the first lines of a session say who gets in, and where commands log in.
func TestAccess_IsTold(t *testing.T) {
	t.Parallel()
	require.Empty(t, (&access{}).notices())
	a := &access{
		published: []published{{URL: "http://127.0.0.1:8080", Port: 3000}, {URL: "http://127.0.0.1:8081", Port: 3001, open: true}},
		logins:    []string{"github.com:22", "git.example:2222"}, git: []string{"github.com"},
	}
	var told []string
	for _, p := range a.forwards("s", func(line string) { told = append(told, line) }) {
		p.Listens()
		p.Listens()
	}
	require.Equal(t, []string{
		"http://127.0.0.1:8080 is port 3000 of the sandbox, where something listens now",
		"http://127.0.0.1:8081 is port 3001 of the sandbox, where something listens now; other machines reach it, too",
	}, told)
	require.Equal(t, []string{
		"commands log in with your SSH agent at github.com:22, git.example:2222",
		"commands get your git credentials for github.com",
	}, a.notices())
}

// TestAccess_URLs are what a browser takes.
func TestAccess_URLs(t *testing.T) {
	t.Parallel()
	a, err := (&AccessFlags{Publish: []string{"0:3000", "[::1]:0:3000"}}).openAccess(t.Context(), "ns", hostenv.View{Root: true}, egress.Allow{}, "")
	require.NoError(t, err)
	defer a.close()
	require.Regexp(t, `^http://127\.0\.0\.1:\d+$`, a.published[0].URL)
	require.Regexp(t, `^http://\[::1\]:\d+$`, a.published[1].URL)
}
