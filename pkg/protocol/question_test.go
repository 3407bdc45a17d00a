package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestQuestion_WhatIsNone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "{}", `{"type":"answer","id":"1"}`, `{"type":"question"}`, `{"type":"question","id":1}`} {
		_, err := protocol.DecodeQuestion([]byte(body))
		require.ErrorIs(t, err, protocol.ErrInvalidQuestion, body)
	}
	for _, body := range []string{"", "{}", `{"type":"question","action":"accept"}`, `{"type":"answer"}`, `{"type":"answer","action":"yes"}`} {
		_, err := protocol.DecodeAnswer([]byte(body))
		require.ErrorIs(t, err, protocol.ErrInvalidAnswer, body)
	}
}
