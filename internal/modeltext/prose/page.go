package prose

import (
	"bytes"
	"errors"
	"io"
)

// MaxPage is the most that one page has, in bytes.
const MaxPage = 256 << 10

// Page says which lines are wanted.
type Page struct {
	First  int   // number of the first line, from 1; 0 and less means 1
	Column int64 // number of the first byte of it, from 1; 0 and less means 1
	Limit  int   // of lines; 0 and less means as many as fit
}

// PageText is some lines of a text.
type PageText struct {
	// Content is whole lines, but that the first begins at Column, and ends where no
	// character is split when it alone is more than fits.
	Content []byte
	// Column is that of the page, or after it where that is within a character.
	Column int64
	// Lines is how many lines Content has, and FirstBytes the size of the whole first of them,
	// without its line end.
	Lines      int
	FirstBytes int64
	// Cut is set when lines that are wanted did not fit, and Split when Content is only a part of
	// one line.
	Cut, Split bool
	// Total and Bytes are the size of the whole text.
	Total int
	Bytes int64
}

// ReadPage reads a text to its end.
func ReadPage(text io.Reader, page Page) (PageText, error) {
	s := NewPageScan(page)
	buf := make([]byte, 64<<10)
	for {
		n, err := text.Read(buf)
		s.Take(buf[:n])
		if errors.Is(err, io.EOF) {
			return s.Result(), nil
		}
		if err != nil {
			return PageText{}, err
		}
	}
}

// PageScan takes a text in pieces. It is not safe for concurrent use.
type PageScan struct {
	first, limit int
	skip         int64 // bytes of the first line that are not wanted

	line  int   // of the next byte, from 1
	at    int64 // of it in its line
	start int   // in the content, of the line that is not complete
	full  bool  // no more is wanted
	r     PageText
}

// NewPageScan begins with a text.
func NewPageScan(page Page) *PageScan {
	s := &PageScan{first: max(page.First, 1), limit: page.Limit, skip: max(page.Column, 1) - 1, line: 1}
	s.r.Column = s.skip + 1
	return s
}

// Take takes the next piece of the text, and keeps no hold of it.
func (s *PageScan) Take(chunk []byte) {
	s.r.Bytes += int64(len(chunk))
	for len(chunk) > 0 {
		n := bytes.IndexByte(chunk, '\n') + 1
		ended := n > 0
		if !ended {
			n = len(chunk)
		}
		if s.line >= s.first {
			s.wanted(chunk[:n], ended)
		}
		s.at += int64(n)
		if ended {
			s.line, s.at = s.line+1, 0
		}
		chunk = chunk[n:]
	}
}

// wanted takes a piece of a line that is not before the first.
func (s *PageScan) wanted(piece []byte, ended bool) {
	if s.line == s.first {
		s.r.FirstBytes += int64(len(bytes.TrimSuffix(piece, []byte{'\n'})))
		piece = piece[s.unwanted(piece, ended):]
	}
	switch {
	case s.full:
	case len(s.r.Content)+len(piece) <= MaxPage:
		s.r.Content = append(s.r.Content, piece...)
		if ended {
			s.r.Lines++
			s.start = len(s.r.Content)
			s.full = s.r.Lines == s.limit
		}
	case s.r.Lines == 0: // not even one line fits
		s.r.Content = append(s.r.Content, piece[:MaxPage-len(s.r.Content)]...)
		s.r.Content = s.r.Content[:Border(s.r.Content)]
		s.r.Lines, s.start, s.full, s.r.Cut, s.r.Split = 1, len(s.r.Content), true, true, true
	default:
		s.r.Content, s.full, s.r.Cut = s.r.Content[:s.start], true, true
	}
}

// unwanted is how many bytes of a piece of the first line are before the first column;
// never its line end, so that the next line begins where it does.
func (s *PageScan) unwanted(piece []byte, ended bool) int64 {
	most := int64(len(piece))
	if ended {
		most--
	}
	return min(max(s.skip-s.at, 0), most)
}

// Result is what there is once all of the text was taken.
func (s *PageScan) Result() PageText {
	if s.r.Total = s.line - 1; s.at > 0 {
		s.r.Total++
	}
	if len(s.r.Content) > s.start { // a last line without a line end
		s.r.Lines++
	}
	if s.skip > 0 { // not within a character
		n := Start(s.r.Content)
		s.r.Content = s.r.Content[n:]
		s.r.Column += int64(n)
	}
	return s.r
}
