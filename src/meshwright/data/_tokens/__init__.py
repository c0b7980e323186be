"""Tokenizers in Hugging Face's folders: chats by their own templates, and new tokenizers.

`_folder` reads the files of a folder and checks their configs, `_template` renders a chat in Jinja's sandbox
and finds the assistant's parts, `_chat` makes tokens and weights of them, and `_train` makes tokenizers.
`tokenizers` and `jinja2` are loaded where they are used.
"""
