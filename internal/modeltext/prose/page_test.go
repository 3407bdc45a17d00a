package prose_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

func TestRead(t *testing.T) {
	t.Parallel()
	const text = "one\ntwö\n\nfour"
	for name, test := range map[string]struct {
		text string
		page prose.Page
		want prose.PageText
	}{
		"everything":          {text, prose.Page{}, prose.PageText{Content: []byte(text), Column: 1, Lines: 4, FirstBytes: 3}},
		"some lines":          {text, prose.Page{First: 2, Limit: 2}, prose.PageText{Content: []byte("twö\n\n"), Column: 1, Lines: 2, FirstBytes: 4}},
		"the last":            {text, prose.Page{First: 4, Limit: 9}, prose.PageText{Content: []byte("four"), Column: 1, Lines: 1, FirstBytes: 4}},
		"an empty line":       {text, prose.Page{First: 3, Limit: 1}, prose.PageText{Content: []byte("\n"), Column: 1, Lines: 1}},
		"from a column":       {text, prose.Page{First: 1, Column: 3, Limit: 2}, prose.PageText{Content: []byte("e\ntwö\n"), Column: 3, Lines: 2, FirstBytes: 3}},
		"within a character":  {text, prose.Page{First: 2, Column: 4, Limit: 1}, prose.PageText{Content: []byte("\n"), Column: 5, Lines: 1, FirstBytes: 4}},
		"beyond a line":       {text, prose.Page{First: 1, Column: 99, Limit: 2}, prose.PageText{Content: []byte("\ntwö\n"), Column: 99, Lines: 2, FirstBytes: 3}},
		"beyond the last":     {text, prose.Page{First: 4, Column: 99}, prose.PageText{Column: 99, FirstBytes: 4}},
		"beyond the end":      {text, prose.Page{First: 5}, prose.PageText{Column: 1}},
		"nothing":             {"", prose.Page{}, prose.PageText{Column: 1}},
		"negative is nothing": {text, prose.Page{First: -1, Column: -1, Limit: -1}, prose.PageText{Content: []byte(text), Column: 1, Lines: 4, FirstBytes: 3}},
	} {
		for _, reader := range []io.Reader{strings.NewReader(test.text), iotest.OneByteReader(strings.NewReader(test.text))} {
			got, err := prose.ReadPage(reader, test.page)
			require.NoError(t, err, name)
			test.want.Bytes, test.want.Total = int64(len(test.text)), 4
			if test.text == "" {
				test.want.Total = 0
			}
			if len(got.Content) == 0 {
				got.Content = nil
			}
			require.Equal(t, test.want, got, name)
		}
	}
	broken := errors.New("broken")
	_, err := prose.ReadPage(io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken)), prose.Page{})
	require.ErrorIs(t, err, broken)
}

// TestRead_WhatDoesNotFit: whole lines, or a part of one in which no character is split,
// and reading on misses nothing.
func TestRead_WhatDoesNotFit(t *testing.T) {
	t.Parallel()
	short := strings.Repeat("x", 1000) + "\n"
	got, err := prose.ReadPage(strings.NewReader(strings.Repeat(short, 1000)), prose.Page{First: 3})
	require.NoError(t, err)
	require.Equal(t, prose.MaxPage/len(short), got.Lines)
	require.Len(t, got.Content, got.Lines*len(short))
	require.Equal(t, 1000, got.Total)

	long := "ab" + strings.Repeat("漢", prose.MaxPage) + "end"
	text := "first\n" + long + "\nlast\n"
	var all strings.Builder
	for column := int64(1); column <= int64(len(long)); {
		got, err := prose.ReadPage(strings.NewReader(text), prose.Page{First: 2, Column: column, Limit: 1})
		require.NoError(t, err)
		require.Equal(t, 1, got.Lines)
		require.Equal(t, 3, got.Total)
		require.EqualValues(t, len(long), got.FirstBytes)
		require.True(t, utf8.Valid(got.Content))
		require.Equal(t, column, got.Column)
		all.Write(got.Content)
		column += int64(len(got.Content))
	}
	require.Equal(t, long+"\n", all.String())
}

func FuzzRead(f *testing.F) {
	f.Add("one\ntwö\n", 1, int64(2), 1)
	f.Add("\xff\n\x80", 2, int64(1), 0)
	f.Fuzz(func(t *testing.T, text string, first int, column int64, limit int) {
		page := prose.Page{First: first, Column: column, Limit: limit}
		got, err := prose.ReadPage(strings.NewReader(text), page)
		require.NoError(t, err)
		require.EqualValues(t, len(text), got.Bytes)
		require.Contains(t, text, string(got.Content))
		inPieces, err := prose.ReadPage(iotest.OneByteReader(strings.NewReader(text)), page)
		require.NoError(t, err)
		require.Equal(t, string(got.Content), string(inPieces.Content))
		require.Equal(t, got.Lines, inPieces.Lines)
	})
}
