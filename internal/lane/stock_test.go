package lane

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadStock(t *testing.T) {
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
			s, err := readStock([]byte(test.body))
			if test.fails {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.last, s.last)
			require.Len(t, s.unread, test.unread)
			require.Equal(t, test.whole, s.whole)
			require.Equal(t, test.whole && test.unread == 0, s.empty())
		})
	}
}

func TestStock_WhatIsNotInTheListIsOldUnlessItCameLater(t *testing.T) {
	t.Parallel()
	var none *stock
	require.True(t, none.lists(&letter{seq: 3, subject: "a"}), "a server on its own takes no stock")
	require.False(t, none.empty())
	s := &stock{last: 17, whole: true, unread: map[string]uint64{"a": 1, "late": 1}}
	require.False(t, s.lists(&letter{seq: 2, subject: "removed"}))
	require.True(t, s.lists(&letter{seq: 3, subject: "a"}))
	require.False(t, s.empty(), "something is to be found")
	require.True(t, s.lists(&letter{seq: 18, subject: "new"}))
	require.True(t, s.lists(&letter{seq: 19, subject: "late"}), "stored while the list was made")
	require.True(t, s.empty())
	part := &stock{last: 17, unread: map[string]uint64{"a": 1}}
	require.True(t, part.lists(&letter{seq: 2, subject: "b"}), "nothing is known of what the list leaves out")
}
