package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadListing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body   string
		last   uint64
		unread int
		whole  bool
		fails  bool
	}{
		"nothing in the mailbox":       {body: `{"config":{},"state":{"messages":9,"last_seq":17}}`, last: 17, whole: true},
		"some of the mailbox":          {body: `{"total":2,"state":{"last_seq":17,"subjects":{"a":1,"b":1}}}`, last: 17, unread: 2, whole: true},
		"more than one answer can say": {body: `{"total":3,"state":{"last_seq":17,"subjects":{"a":1,"b":1}}}`, last: 17, unread: 2},
		"no stream":                    {body: `{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`, fails: true},
		"no state":                     {body: `{"total":0}`, fails: true},
		"no JSON":                      {body: `x`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := readListing([]byte(test.body))
			if test.fails {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.last, s.Last)
			require.Len(t, s.Subjects, test.unread)
			require.Equal(t, test.whole, s.Whole)
		})
	}
}
