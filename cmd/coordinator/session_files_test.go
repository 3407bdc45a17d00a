package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneLine_ANameIsOneEntry(t *testing.T) {
	t.Parallel()
	require.Equal(t, `a\nb\r\tc`, oneLine("a\nb\r\tc"))
}
