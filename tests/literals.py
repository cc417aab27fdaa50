"""Texts in SQL, and what Spark reads."""

LITERALS = [
    ("'O''Brien'", "O'Brien"),
    (r"'O\'Brien'", "O'Brien"),
    ('"O\'Brien"', "O'Brien"),
    ('"say ""so"""', 'say "so"'),
    ("'say \"\"so'", 'say ""so'),
    (r"'a\\b'", "a\\b"),
    (r"'a\nb\tc\0d\Z'", "a\nb\tc\0d\x1a"),
    (r"'\u00e9\U0001F600\101'", "é😀A"),
    (r"'\ud83d\ude00'", "😀"),
    (r"'50\% \_x \q'", r"50\% \_x q"),
    ("''", ""),
    ("''''", "'"),
    ("'a\nb'", "a\nb"),
]
