//! Facts about API types that a comparison needs. The table in `merge_keys` consists of them.

/// A type: its fields with special rules, and its fields that lead to such fields.
pub(crate) struct Type {
    fields: &'static [(&'static str, Field)],
    /// Whether a patch leaves only the desired members (`retainKeys`), because members exclude each other.
    pub is_union: bool,
}

/// A field with a rule of its own.
#[derive(Clone, Copy)]
pub(crate) enum Field {
    Object(&'static Type),
    /// An object that a patch replaces.
    Replaced(&'static Type),
    /// A list that a patch replaces.
    List(&'static Type),
    /// A list whose elements have keys. A strategic merge patch identifies an element by the first of them.
    Keyed(&'static [Key], &'static Type),
    /// A list of strings without order, to which a patch adds.
    Set,
    /// A map, which is not stored while it is empty.
    Map,
    /// A value of a map, which is stored even if it is empty.
    Entry,
    Quantity,
    /// A map of quantities.
    Quantities,
    /// A map of objects.
    Objects(&'static Type),
}

/// Name and default of a key; the default is empty if there is none.
pub(crate) type Key = (&'static str, &'static str);

/// A type without rules.
pub(crate) static PLAIN: Type = Type::of(&[]);

impl Type {
    pub(crate) const fn of(fields: &'static [(&'static str, Field)]) -> Self {
        Self {
            fields,
            is_union: false,
        }
    }

    pub(crate) const fn union(fields: &'static [(&'static str, Field)]) -> Self {
        Self {
            fields,
            is_union: true,
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<Field> {
        let mut fields = self.fields.iter();
        fields.find(|(field, _)| *field == name).map(|(_, it)| *it)
    }
}

impl Field {
    /// Returns the type of the members of this field, or of the elements of this list.
    pub(crate) fn type_of_members(self) -> &'static Type {
        match self {
            Self::Object(of) | Self::Replaced(of) | Self::List(of) | Self::Keyed(_, of) => of,
            Self::Set
            | Self::Map
            | Self::Entry
            | Self::Quantity
            | Self::Quantities
            | Self::Objects(_) => &PLAIN,
        }
    }

    /// Returns the rule of a member of this field.
    pub(crate) fn member(self, name: &str) -> Option<Self> {
        match self {
            Self::Map => Some(Self::Entry),
            Self::Quantities => Some(Self::Quantity),
            Self::Objects(of) => Some(Self::Object(of)),
            other => other.type_of_members().field(name),
        }
    }
}
