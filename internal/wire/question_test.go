package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
)

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
