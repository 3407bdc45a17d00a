package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of a search.
const (
	MaxQuery     = 500 // bytes
	maxWords     = 32
	passageBytes = 400
	MaxPassages  = 1000
)

// Query says what is searched.
type Query struct {
	// Words must all be in a passage: words, "phrases in quotes", and word* for all words that
	// begin like it.
	Words string
	// Since is the least time of passages; zero is every time.
	Since time.Time
	// Limit bounds the number of passages, up to [MaxPassages]; 0 means 20.
	Limit int
	// Owner has only sessions of this owner found; nil has those of all owners.
	Owner *judge.Owner
	// Except is a session whose passages are not wanted; "" is none.
	Except protocol.SessionID
	// Tenant has only sessions of this tenant looked at; "" is every tenant.
	Tenant protocol.Tenant
	// May judges whether the searcher may see a session; owner is nil if the journal does not state
	// one. An error that wraps [judge.ErrRefused] or [codes.ErrNotFound] leaves the session out.
	// nil shows all.
	May func(ctx context.Context, id protocol.SessionID, owner *judge.Owner) error
}

// Search updates the index and returns the passages that have the words of a query, as far as the
// searcher may see them. The error wraps [codes.ErrInvalid] if the query is not understood.
func (x *Index) Search(ctx context.Context, q Query) (found report.Found, err error) {
	terms, err := parse(q.Words)
	switch {
	case err != nil:
		return found, codes.As(codes.ErrInvalid, err)
	case q.Limit < 0 || q.Limit > MaxPassages:
		return found, codes.As(codes.ErrInvalid, fmt.Errorf("limit %d: must be 1 to %d", q.Limit, MaxPassages))
	case q.Limit == 0:
		q.Limit = 20
	}
	if err := x.Update(ctx); err != nil {
		return found, err
	}
	err = x.query(ctx, func(o *opened) (err error) {
		found, err = x.find(ctx, o, terms, &q)
		return err
	})
	if err != nil {
		return report.Found{}, fmt.Errorf("search: %w", err)
	}
	return found, nil
}

// maxRanked bounds how many of the passages with common words are ranked: the newest ones.
const maxRanked = 20_000

// selects has the passages of words, the best first, without their texts. Rows grow with time but
// for sessions that were read again, so those behind the first one since a time have all that came
// since.
const selects = `SELECT * FROM (
  SELECT e.id, bm25(word) AS score, s.name, s.tenant, s.owner, s.owned
  FROM word JOIN entry e ON e.id = word.rowid JOIN session s ON s.id = e.session
  WHERE word MATCH ?1 AND word.rowid >= coalesce((SELECT min(id) FROM entry WHERE at >= ?2), 0) AND e.at >= ?2 AND e.role NOT IN ('input', 'output') AND s.copies = '' AND s.name <> ?3
  AND (?4 = '' OR s.owned AND s.tenant = ?4 AND s.owner = ?5) AND (?6 = '' OR NOT s.owned OR s.tenant = ?6)
  ORDER BY word.rowid DESC LIMIT ?7) ORDER BY score, id DESC`

// hit is a passage that the searcher may see.
type hit struct {
	id    int64
	score float64
}

// find returns passages of the file.
func (x *Index) find(ctx context.Context, o *opened, terms []term, q *Query) (found report.Found, err error) {
	found.Passages = []report.Passage{}
	if found.Since, err = sinceOf(ctx, o); err != nil {
		return found, err
	}
	hits, more, err := q.hits(ctx, o, terms)
	found.More = more
	for _, h := range hits {
		if err != nil {
			break
		}
		p := report.Passage{Score: -h.score}
		var at int64
		err = o.read.QueryRowContext(ctx,
			"SELECT s.name, e.at, e.turn, e.step, e.role, e.tool, e.call, e.body FROM entry e JOIN session s ON s.id = e.session WHERE e.id = ?",
			h.id).
			Scan(&p.SessionID, &at, &p.Turn, &p.Step, &p.Role, &p.Tool, &p.CallID, &p.Text)
		if errors.Is(err, sql.ErrNoRows) { // removed meanwhile
			err = nil
			continue
		}
		p.Time, p.Text = time.UnixMilli(at).UTC(), around(p.Text, terms)
		found.Passages = append(found.Passages, p)
	}
	return found, err
}

// hits returns the passages that the searcher may see, up to the limit, and whether there are more.
func (q *Query) hits(ctx context.Context, o *opened, terms []term) (hits []hit, more bool, err error) {
	from, tenant, owner := int64(-1)<<62, "", ""
	if !q.Since.IsZero() {
		from = q.Since.UnixMilli()
	}
	if q.Owner != nil {
		tenant, owner = string(q.Owner.Tenant), q.Owner.By
	}
	rows, err := o.read.QueryContext(ctx, selects, expression(terms), from, string(q.Except), tenant, owner, string(q.Tenant), maxRanked)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	may := map[protocol.SessionID]bool{}
	for rows.Next() {
		var h hit
		var id protocol.SessionID
		var of judge.Owner
		var owned bool
		if err := rows.Scan(&h.id, &h.score, &id, &of.Tenant, &of.By, &owned); err != nil {
			return nil, false, err
		}
		shown, judged := may[id]
		if !judged {
			if shown, err = q.shows(ctx, id, of, owned); err != nil {
				return nil, false, err
			}
			may[id] = shown
		}
		switch {
		case !shown:
		case len(hits) == q.Limit:
			return hits, true, nil
		default:
			hits = append(hits, h)
		}
	}
	return hits, false, rows.Err()
}

// shows reports whether the searcher may see a session.
func (q *Query) shows(ctx context.Context, id protocol.SessionID, of judge.Owner, owned bool) (bool, error) {
	if q.May == nil {
		return true, nil
	}
	owner := &of
	if !owned {
		owner = nil
	}
	err := q.May(ctx, id, owner)
	if errors.Is(err, judge.ErrRefused) || errors.Is(err, codes.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// term is a part of a query: a word, or several that must follow each other.
type term struct {
	words  []string
	prefix bool // the last one is the beginning of a word
}

// parse reads a query.
func parse(query string) (terms []term, err error) {
	bad := func(format string, args ...any) ([]term, error) {
		return nil, fmt.Errorf("words %q: %s; a query has words, \"phrases in quotes\" and word* for all words that begin like it",
			prose.Cut(query, passageBytes), fmt.Sprintf(format, args...))
	}
	switch {
	case !utf8.ValidString(query):
		return bad("not UTF-8")
	case len(query) > MaxQuery:
		return bad("%d bytes: must be at most %d", len(query), MaxQuery)
	}
	count := 0
	for rest := strings.TrimLeftFunc(query, unicode.IsSpace); rest != ""; rest = strings.TrimLeftFunc(rest, unicode.IsSpace) {
		var piece string
		if quoted, is := strings.CutPrefix(rest, `"`); is {
			var ends bool
			if piece, rest, ends = strings.Cut(quoted, `"`); !ends {
				return bad("the quote before %q does not end", quoted)
			}
			if strings.HasPrefix(rest, "*") {
				piece, rest = piece+"*", rest[1:]
			}
		} else {
			end := strings.IndexFunc(rest, func(r rune) bool { return unicode.IsSpace(r) || r == '"' })
			if end < 0 {
				end = len(rest)
			}
			piece, rest = rest[:end], rest[end:]
		}
		t := term{prefix: strings.HasSuffix(piece, "*")}
		prose.EachWord(piece, func(word string, _ int) { t.words = append(t.words, fold(word)) })
		if count += len(t.words); len(t.words) == 0 {
			return bad("%q has no letter or digit", piece)
		}
		terms = append(terms, t)
	}
	switch {
	case count == 0:
		return bad("no word")
	case count > maxWords:
		return bad("%d words: must be at most %d", count, maxWords)
	}
	return terms, nil
}

// expression is a query of FTS5: words are letters, marks and digits, so no quote can end a string.
func expression(terms []term) string {
	all := make([]string, len(terms))
	for i, t := range terms {
		all[i] = `"` + strings.Join(t.words, " ") + `"`
		if t.prefix {
			all[i] += " *"
		}
	}
	return strings.Join(all, " AND ")
}

// around returns the text around the first word of a query.
func around(text string, terms []term) string {
	first := -1
	prose.EachWord(text, func(word string, at int) {
		if first >= 0 {
			return
		}
		word = fold(word)
		for _, t := range terms {
			if word == t.words[0] || t.prefix && len(t.words) == 1 && strings.HasPrefix(word, t.words[0]) {
				first = at
			}
		}
	})
	return prose.Around(text, max(first, 0), passageBytes)
}

// Exists reports whether a directory has a file of an index.
func Exists(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, File))
	return err == nil
}
