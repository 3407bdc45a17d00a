package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestApproval_ComesBack(t *testing.T) {
	t.Parallel()
	for _, approval := range []protocol.Approval{{}, {Granted: true, By: "ada", Note: "<fine>"}} {
		body, err := wire.EncodeApproval(approval)
		require.NoError(t, err)
		decoded, err := wire.DecodeApproval(body)
		require.NoError(t, err)
		require.Equal(t, approval, decoded)
	}
	for _, body := range []string{"", "{}", `{"type":"call","granted":true}`, `{"type":"approval","granted":"yes"}`} {
		_, err := wire.DecodeApproval([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidApproval, body)
	}
}

func TestQuestion_WhatIsNone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "{}", `{"type":"answer","id":"1"}`, `{"type":"question"}`, `{"type":"question","id":1}`} {
		_, err := wire.DecodeQuestion([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidQuestion, body)
	}
	for _, body := range []string{"", "{}", `{"type":"question","action":"accept"}`, `{"type":"answer"}`, `{"type":"answer","action":"yes"}`} {
		_, err := wire.DecodeAnswer([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidAnswer, body)
	}
}

func TestAuthor_IsWhatGitCanHaveInACommit(t *testing.T) {
	t.Parallel()
	require.NoError(t, wire.ValidateAuthor(protocol.Author{}))
	require.NoError(t, wire.ValidateAuthor(protocol.Author{Name: "Ada Lovelace", Email: "ada@example.com"}))
	for _, bad := range []string{"a\nGIT_SSH=evil", "<a>", strings.Repeat("x", 257), "\x1b[2J"} {
		require.ErrorContains(t, wire.ValidateAuthor(protocol.Author{Name: bad}), "author.name")
		require.ErrorContains(t, wire.ValidateAuthor(protocol.Author{Email: bad}), "author.email")
	}
}

func TestAuthor_CommandsKnowIt(t *testing.T) {
	t.Parallel()
	ada := protocol.Author{Name: "Ada", Email: "ada@example.com"}
	want := map[string]string{"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.com", "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.com"}
	require.Equal(t, protocol.CommandRun{Command: "x", Env: want}, wire.WithAuthor(protocol.CommandRun{Command: "x"}, ada))
	require.Equal(t, protocol.CodeRun{Code: "x", Env: want}, wire.WithAuthor(protocol.CodeRun{Code: "x"}, ada))
	own := map[string]string{"GIT_AUTHOR_NAME": "Eve", "X": "y"}
	got, is := wire.WithAuthor(protocol.CommandRun{Env: own}, ada).(protocol.CommandRun)
	require.True(t, is)
	require.Equal(t, "Eve", got.Env["GIT_AUTHOR_NAME"], "what the call says counts more")
	require.Equal(t, "Ada", got.Env["GIT_COMMITTER_NAME"])
	require.Len(t, own, 2, "which is not changed")
	require.Equal(t, wire.Noop{}, wire.WithAuthor(wire.Noop{}, ada))
	require.Equal(t, protocol.CommandRun{}, wire.WithAuthor(protocol.CommandRun{}, protocol.Author{}))
}
