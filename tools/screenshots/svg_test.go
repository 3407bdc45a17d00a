package main

import (
	"errors"
	"os"
	"testing"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/stretchr/testify/require"
)

// A browser draws each character in its cell, however many spaces are before it.
func TestRender_EveryCharacterIsInItsCell(t *testing.T) {
	t.Parallel()
	l := line{text: []rune("   ?       example.com/wordstats   [no <test> files]  a")}
	l.styles = make([]uv.Style, len(l.text))
	for i := 20; i < 30; i++ {
		l.styles[i].Attrs = uv.AttrBold
	}
	image := render("$ go  test", []line{l})
	require.NotRegexp(t, `<text[^>]*>[^<]* [^<]*</text>`, image)
	lookAt(t, image)
}

// The picture of the README is one that browsers draw so.
func TestPicture_IsDrawnAsItStands(t *testing.T) {
	t.Parallel()
	image, err := os.ReadFile("../../docs/images/run.svg")
	require.NoError(t, err)
	require.NotRegexp(t, `<text[^>]*>[^<]* [^<]*</text>`, string(image))
	lookAt(t, string(image))
}

func lookAt(t *testing.T, image string) {
	t.Helper()
	err := look(image)
	if errors.Is(err, errNoBrowser) {
		t.Skip(err)
	}
	require.NoError(t, err)
}
