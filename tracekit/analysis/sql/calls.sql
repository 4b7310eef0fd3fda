-- The collectives of the window and of two steps before it, numbered: when the members arrived,
-- and for what each had to wait; of :absent ranks nothing was recorded. ready_ns is for ordinary
-- members, root_ready_ns for the root; NULL where this member waits for nobody, or where members
-- are missing and nothing can be timed. To wait for a call is no call of its own.
WITH members AS (
  SELECT
    collective_group AS grp,
    collective_seq AS seq,
    CASE WHEN collective_op IN ('send', 'recv') THEN 'p2p' ELSE collective_op END AS op,
    CASE collective_op
      WHEN 'send' THEN rank * 1048576 + peer_rank
      WHEN 'recv' THEN peer_rank * 1048576 + rank
      ELSE -1
    END AS pair,
    rank, step, start_ns, end_ns, is_open, sent_before, collective_bytes, group_size, peer_rank,
    CASE WHEN collective_op = 'send' OR rank = peer_rank THEN start_ns END AS root_ns
  FROM timeline
  WHERE kind = 'comm' AND is_wait = 0
    AND collective_seq IS NOT NULL AND collective_group IS NOT NULL
    AND step BETWEEN :first - 2 AND :last
),
met AS (
  SELECT
    grp, seq, op, pair,
    MIN(step) AS step,
    MAX(step) AS last_step,
    COUNT(*) AS members,
    MAX(CASE WHEN op = 'p2p' THEN 2 ELSE group_size END) AS group_size,
    MAX(peer_rank) AS root,
    MIN(start_ns) AS first_ns,
    MAX(start_ns) AS last_ns,
    MAX_BY(rank, start_ns) AS last_rank,
    MAX(root_ns) AS root_ns,
    MIN(end_ns) AS first_end_ns,
    MAX(end_ns) AS end_ns,
    SUM(CAST(start_ns - :origin AS DOUBLE)) AS starts,
    SUM(CAST(end_ns - :origin AS DOUBLE)) AS ends,
    MAX(collective_bytes) AS bytes,
    MAX(sent_before) AS sent_before,
    MAX(CASE WHEN is_open THEN 1 ELSE 0 END) AS is_open
  FROM members
  GROUP BY grp, seq, op, pair
)
SELECT
  ROW_NUMBER() OVER (
    ORDER BY m.grp NULLS LAST, m.last_ns NULLS LAST, m.seq NULLS LAST, m.op NULLS LAST,
      m.pair NULLS LAST
  ) AS call,
  m.grp, m.seq, m.op, m.pair, m.step, m.last_step, m.members, m.group_size, m.first_ns,
  m.last_ns, m.last_rank, m.root_ns, m.first_end_ns, m.starts, m.ends, m.bytes, m.sent_before,
  d.direction,
  CASE WHEN m.op = 'p2p' THEN CAST(floor(m.pair / 1048576) AS BIGINT) ELSE m.root END AS root,
  CASE WHEN m.members + :absent >= m.group_size AND m.is_open = 0 THEN 1 ELSE 0 END AS complete,
  CASE
    WHEN m.members + :absent < m.group_size THEN NULL
    WHEN d.direction = 'all' THEN m.last_ns
    WHEN d.direction IN ('from_root', 'pair') THEN m.root_ns
  END AS ready_ns,
  CASE
    WHEN m.members + :absent >= m.group_size AND d.direction IN ('all', 'to_root') THEN m.last_ns
  END AS root_ready_ns,
  MAX(m.end_ns) OVER (
    PARTITION BY m.grp, m.pair ORDER BY m.last_ns NULLS LAST, m.seq NULLS LAST, m.op NULLS LAST
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS previous_end_ns
FROM met m
LEFT JOIN directions d ON d.op = m.op
