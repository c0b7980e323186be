"""What griffe does not see by itself: methods that an object forwards to one of its parts."""

import griffe


class ForwardedMethods(griffe.Extension):
    """Shows `save = Forwarded("_part", Part.save)` in a class as the method that it stands for."""

    def on_class_members(self, *, node, cls, agent, **kwargs):
        for name, member in list(cls.members.items()):
            value = getattr(member, "value", None) if not member.is_alias else None
            if isinstance(value, griffe.ExprCall) and str(value.function) == "Forwarded":
                cls.set_member(name, griffe.Alias(name, value.arguments[1].canonical_path, parent=cls))
