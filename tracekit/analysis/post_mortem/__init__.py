"""Who never arrived or ended first: from open spans, dumps and logs, causes apart from effects."""
