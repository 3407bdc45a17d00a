package protocol_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestAuthor_IsWhatGitCanHaveInACommit(t *testing.T) {
	t.Parallel()
	require.NoError(t, protocol.Author{}.Validate())
	require.NoError(t, protocol.Author{Name: "Ada Lovelace", Email: "ada@example.com"}.Validate())
	for _, bad := range []string{"a\nGIT_SSH=evil", "<a>", strings.Repeat("x", 257), "\x1b[2J"} {
		require.ErrorContains(t, protocol.Author{Name: bad}.Validate(), "author.name")
		require.ErrorContains(t, protocol.Author{Email: bad}.Validate(), "author.email")
	}
}

func TestAuthor_CommandsKnowIt(t *testing.T) {
	t.Parallel()
	ada := protocol.Author{Name: "Ada", Email: "ada@example.com"}
	want := map[string]string{"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.com", "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.com"}
	require.Equal(t, protocol.CommandRun{Command: "x", Env: want}, ada.In(protocol.CommandRun{Command: "x"}))
	require.Equal(t, protocol.CodeRun{Code: "x", Env: want}, ada.In(protocol.CodeRun{Code: "x"}))
	own := map[string]string{"GIT_AUTHOR_NAME": "Eve", "X": "y"}
	got, is := ada.In(protocol.CommandRun{Env: own}).(protocol.CommandRun)
	require.True(t, is)
	require.Equal(t, "Eve", got.Env["GIT_AUTHOR_NAME"], "what the call says counts more")
	require.Equal(t, "Ada", got.Env["GIT_COMMITTER_NAME"])
	require.Len(t, own, 2, "which is not changed")
	require.Equal(t, protocol.Noop{}, ada.In(protocol.Noop{}))
	require.Equal(t, protocol.CommandRun{}, protocol.Author{}.In(protocol.CommandRun{}))
}
