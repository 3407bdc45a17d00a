package prompt

import (
	"strconv"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
)

// What was typed before a question does not answer it, however slowly it is read.
func TestKeyboard_WhatWasTypedBeforeIsNoAnswer(t *testing.T) {
	t.Parallel()
	person, terminal, err := pty.Open()
	require.NoError(t, err)
	k := newKeyboard(terminal)
	t.Cleanup(func() {
		require.NoError(t, person.Close())
		<-k.typed // the end of the input; the keyboard still reads the terminal, which stays open
	})
	for i := range 2000 {
		_, err := person.WriteString("before\n")
		require.NoError(t, err)
		asked := k.discard()
		want := "answer " + strconv.Itoa(i)
		_, err = person.WriteString(want + "\n")
		require.NoError(t, err)
		line, err := k.line(t.Context(), asked)
		require.NoError(t, err)
		require.Equal(t, want, line)
	}
}
