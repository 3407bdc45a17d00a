package index

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

// position is how far a reader has followed the log: the file, the number of the last call
// that the log had taken in, and when, in milliseconds. A file that was made again takes all calls
// in again. Of these a reader gets the ones that have ended since then, or not long before.
type position struct {
	file        string
	taken, when int64
	again       bool // the file was made again since then, and the reader has not got all of it
}

// rereadMS is how long before a position calls have ended that a reader of a file that was made
// again gets, some of them once more.
const rereadMS = 60_000

// text is the position as readers get it.
func (p position) text(s seal) string {
	text := p.file + "-" + s.text(p.taken) + "-" + strconv.FormatInt(p.when, 36)
	if p.again {
		text += positionAgain
	}
	return text
}

// positionAgain ends the text of a position in a file that was made again.
const positionAgain = "-again"

// parsePosition reads a position. One in another file has no number here.
func (s seal) parsePosition(of string) (*position, error) {
	text, again := strings.CutSuffix(of, positionAgain)
	if parts := strings.Split(text, "-"); len(parts) == 3 && isAlphanumeric(parts[1]) {
		when, err := strconv.ParseInt(parts[2], 36, 64)
		if err == nil {
			p := &position{file: parts[0], when: when, again: again}
			if n, known := s.number(parts[1]); known {
				p.taken = n
			} else {
				p.file = ""
			}
			return p, nil
		}
	}
	return nil, codes.As(codes.ErrInvalid, fmt.Errorf("position %.100q: must be the position of a page", of))
}

func isAlphanumeric(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool { return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') })
}

// newFile is what names a file in positions.
func newFile() string { return strconv.FormatUint(rand.Uint64(), 36) } //nolint:gosec // no secret

// positionNow is the position of one who has all that the file has.
func positionNow(ctx context.Context, o *opened) (now position, err error) {
	now.when = time.Now().UnixMilli()
	err = o.read.QueryRowContext(ctx, "SELECT (SELECT value FROM meta WHERE key = ?), last FROM taken", keyFile).Scan(&now.file, &now.taken)
	return now, err
}

// taken adds calls that the log took in behind a position, the first one first, and sets the
// position up to which it has looked: at some calls for one page. It is the same position if the
// log took in none.
func (q *Calls) taken(ctx context.Context, o *opened, from, now position, terms []term, page *report.CallLog) error {
	where, args := q.conditions()
	where[0] = "c.taken > ? AND c.taken <= ?" // so that it is the one that has an index
	for i := 1; i < len(where); i++ {
		if !strings.HasPrefix(where[i], "+") {
			where[i] = "+" + where[i]
		}
	}
	where = append(where, isShown)
	if from.file != now.file {
		from.taken, from.again = 0, true
	}
	if from.again {
		where, args = append(where, "c.finished >= ?"), append(args, from.when-rereadMS)
	}
	if len(terms) > 0 {
		roles := ""
		if q.Journaled {
			roles = " AND e.role IN ('call', 'result')"
		}
		where, args = append(where, "EXISTS (SELECT 1 FROM word w JOIN entry e ON e.id = w.rowid WHERE word MATCH ? AND w.rowid IN (c.input, c.output)"+roles+")"),
			append(args, expression(terms))
	}
	last := now.taken
	now.taken = min(last, from.taken+scanned)
	rows, err := o.read.QueryContext(ctx, "SELECT "+columns+", c.taken FROM (SELECT * FROM call c WHERE "+strings.Join(where, " AND ")+" ORDER BY c.taken LIMIT ?) c"+ //nolint:gosec // constants: values are arguments
		q.joins()+" ORDER BY c.taken", slices.Concat([]any{q.most(), q.most(), from.taken, now.taken}, args, []any{q.Limit})...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for n := 1; rows.Next(); n++ {
		var number int64
		_, c, err := readCall(rows, q.most(), &number)
		if err != nil {
			return err
		}
		if n == q.Limit {
			now.taken = number
		}
		if err := q.add(ctx, page, &c); err != nil {
			return err
		}
	}
	switch {
	case from.again && (now.taken < last || page.Behind):
		now.when, now.again = from.when, true
	case now.taken == from.taken: // nothing is new
		now.when = from.when
	}
	page.Position = now.text(o.seal)
	return rows.Err()
}
